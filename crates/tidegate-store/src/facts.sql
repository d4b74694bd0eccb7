-- What the door decides on, for a batch. Holds: the cell's row. Indexes: usage from the newest generation down, and
-- primary keys; deferred by eligible_ms.
-- $1 tenants, $2 peers; $3 sessions at most; $4 flows of which it tells in how many something waits. Rows differ by "what";
-- see facts.rs. Behind it comes facts_named.sql where a submission names anything else that exists before it.
WITH n AS MATERIALIZED (SELECT tidegate.now_ms() AS now_ms),
wanted AS MATERIALIZED (
    SELECT 0::smallint AS scope, '' AS key
    UNION ALL SELECT 1::smallint, c FROM unnest(ARRAY['critical', 'standard', 'background']) c
    UNION ALL SELECT 2::smallint, t FROM unnest($1::text[]) t
    UNION ALL SELECT 4::smallint, c || ':' || t FROM unnest($1::text[]) t, unnest(ARRAY['critical', 'standard', 'background']) c
    UNION ALL SELECT s, p FROM unnest($2::text[]) p, unnest(ARRAY[3, 7]::smallint[]) s
), held AS MATERIALIZED (
    SELECT w.scope, w.key, u.*
    FROM wanted w
    CROSS JOIN LATERAL (
        SELECT u.queued, u.running, u.deferred, u.tokens, u.usd_micros, u.bytes, u.rate_full_ns, u.tokens_full_ns, u.runs, u.run_ms, u.shedding
        FROM tidegate.usage u
        WHERE u.scope = w.scope AND u.key = w.key ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
    ) u
), live AS MATERIALIZED (
    SELECT s.id, s.kinds, s.slots, coalesce(s.reservable, s.kinds) AS reservable
    FROM tidegate.heartbeat h JOIN tidegate.session s ON s.id = h.session_id
    WHERE h.expires_ms > (SELECT now_ms FROM n) AND NOT s.draining
)
SELECT 0::smallint AS what, NULL::text AS a, NULL::text AS b, NULL::uuid AS id, NULL::bytea AS hash,
    ARRAY(SELECT DISTINCT k FROM live, unnest(live.kinds) AS k) AS kinds,
    ARRAY[n.now_ms, (SELECT r.n FROM tidegate.policy_revision r WHERE r.id = 1), (SELECT coalesce(sum(slots), 0) FROM live),
        (SELECT count(*) FROM unnest($4::bigint[]) f CROSS JOIN LATERAL (
            SELECT u.queued FROM tidegate.flow_usage u WHERE u.flow_id = f ORDER BY u.flow_id DESC, u.generation DESC LIMIT 1
        ) u WHERE u.queued > 0)]::bigint[] AS n
FROM n
UNION ALL
SELECT 1::smallint, h.key, NULL, NULL, NULL, NULL,
    ARRAY[h.scope, h.queued, h.running, h.deferred, h.tokens, h.usd_micros, h.bytes, h.rate_full_ns, h.tokens_full_ns, h.runs, h.run_ms, h.shedding::int]::bigint[]
FROM held h
UNION ALL
SELECT 2::smallint, NULL, NULL, NULL, NULL, NULL, ARRAY[d.flow_id, count(*), sum(d.tokens), sum(d.usd_micros)]::bigint[]
FROM (
    SELECT d.flow_id, d.tokens, d.usd_micros FROM tidegate.deferred d
    WHERE (SELECT deferred FROM held WHERE scope = 0) > 0 AND d.eligible_ms <= (SELECT now_ms FROM n) LIMIT 10000
) d
GROUP BY d.flow_id
UNION ALL
(
    SELECT 6::smallint, NULL, NULL, l.id, NULL, l.reservable, ARRAY[l.slots - u.running]::bigint[]
    FROM live l
    CROSS JOIN LATERAL (
        SELECT u.running FROM tidegate.usage u
        WHERE u.scope = 5 AND u.key = l.id::text ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
    ) u
    WHERE l.slots > u.running
    ORDER BY l.slots - u.running DESC LIMIT $3::int
)
