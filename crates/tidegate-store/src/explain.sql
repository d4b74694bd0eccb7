-- A tenant's task and what it may wait for: what its levels hold, the live sessions, those that run its kind. Changes
-- nothing and takes no lock. Indexes: primary keys, usage from the newest generation down; heartbeat and session are as
-- small as the fleet.
-- $1 the task, $2 its tenant. Of each level (the cell; critical, standard, background; the tenant; the tenant's class; the
-- peer) held has eight numbers in a row: queued, running, deferred, tokens, usd_micros, bytes, the two buckets.
WITH n AS MATERIALIZED (SELECT tidegate.now_ms() AS now_ms),
live AS MATERIALIZED (
    SELECT s.id, s.kinds, s.slots
    FROM tidegate.heartbeat h JOIN tidegate.session s ON s.id = h.session_id
    WHERE h.expires_ms > (SELECT now_ms FROM n) AND NOT s.draining
)
SELECT n.now_ms, (SELECT r.n FROM tidegate.policy_revision r WHERE r.id = 1) AS revision,
    t.kind, t.peer, t.class, t.rank, t.tokens, t.usd_micros, octet_length(t.payload)::bigint AS bytes, t.detail, t.max_attempts,
    coalesce(t.status, CASE
        WHEN l.task_id IS NOT NULL THEN 'RUNNING'
        WHEN w.task_id IS NOT NULL THEN 'DEFERRED'
        WHEN f.lane = 0 THEN 'ADMITTED'
        ELSE 'QUEUED' END) AS status,
    coalesce(t.reason, w.reason) AS reason,
    -- A task that came back waits since its latest run ended.
    coalesce(t.finished_ms, l.started_ms, (
        SELECT a.ended_ms FROM tidegate.attempt a WHERE a.task_id = $1::uuid ORDER BY a.task_id DESC, a.fence DESC LIMIT 1
    ), t.enqueued_ms) AS since_ms,
    w.eligible_ms, r.reserved_ms,
    coalesce(s.worker, t.worker) AS worker,
    CASE WHEN l.task_id IS NOT NULL THEN l.failures + 1 ELSE t.attempt END::int AS attempt,
    EXISTS (SELECT FROM tidegate.cancel_request c WHERE c.task_id = t.id) AS cancel_requested,
    coalesce(f.lane = 3, false) AS suspect,
    (SELECT coalesce(sum(slots), 0)::bigint FROM live) AS live_slots,
    k.sessions, k.slots, k.taken,
    ARRAY(
        SELECT coalesce(v.held, 0)
        FROM (
            SELECT 0 AS at, 0::smallint AS scope, '' AS key
            UNION ALL SELECT 1, 1::smallint, 'critical'
            UNION ALL SELECT 2, 1::smallint, 'standard'
            UNION ALL SELECT 3, 1::smallint, 'background'
            UNION ALL SELECT 4, 2::smallint, t.tenant
            UNION ALL SELECT 5, 4::smallint, (ARRAY['critical', 'standard', 'background'])[t.class + 1] || ':' || t.tenant
            UNION ALL SELECT 6, 3::smallint, coalesce(t.peer, '')
        ) level
        LEFT JOIN LATERAL (
            SELECT u.* FROM tidegate.usage u
            WHERE u.scope = level.scope AND u.key = level.key ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
        ) u ON true
        CROSS JOIN LATERAL unnest(
            ARRAY[u.queued, u.running, u.deferred, u.tokens, u.usd_micros, u.bytes, u.rate_full_ns, u.tokens_full_ns]
        ) WITH ORDINALITY AS v(held, n)
        ORDER BY level.at, v.n
    ) AS held
FROM tidegate.task t
CROSS JOIN n
LEFT JOIN tidegate.flow f ON f.id = t.flow_id AND t.status IS NULL
LEFT JOIN tidegate.ready r ON r.flow_id = t.flow_id AND r.rank = t.rank AND r.task_id = t.id AND t.status IS NULL
LEFT JOIN tidegate.deferred w ON w.task_id = t.id AND t.status IS NULL
LEFT JOIN tidegate.lease l ON l.task_id = t.id AND t.status IS NULL
LEFT JOIN tidegate.session s ON s.id = coalesce(l.session_id, r.session_id)
CROSS JOIN LATERAL (
    SELECT count(*) AS sessions, coalesce(sum(own.slots), 0)::bigint AS slots, coalesce(sum(u.running), 0)::bigint AS taken
    FROM live own
    LEFT JOIN LATERAL (
        SELECT u.running FROM tidegate.usage u
        WHERE u.scope = 5 AND u.key = own.id::text ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
    ) u ON true
    WHERE t.kind = ANY(own.kinds)
) k
WHERE t.id = $1::uuid AND t.tenant = $2::text
