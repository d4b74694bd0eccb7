-- With $1 the records are held against the places too, which reads all that retention keeps. Every counter beside the rows it counts; what differs is returned. One snapshot, no lock.
WITH held AS MATERIALIZED (
    SELECT flow_id, task_id, (session_id IS NULL)::int AS queued, (session_id IS NOT NULL)::int AS running, 0 AS deferred, tokens, usd_micros,
        bytes::bigint AS bytes FROM tidegate.ready
    UNION ALL SELECT flow_id, task_id, 0, 1, 0, tokens, usd_micros, bytes FROM tidegate.lease
    UNION ALL SELECT flow_id, task_id, 0, 0, 1, 0, 0, bytes FROM tidegate.deferred
), by_scope AS (
    SELECT k.scope, k.key, sum(h.queued) AS queued, sum(h.running) AS running, sum(h.deferred) AS deferred,
        sum(h.tokens) AS tokens, sum(h.usd_micros) AS usd_micros, sum(h.bytes) AS bytes
    FROM held h JOIN tidegate.flow f ON f.id = h.flow_id
    CROSS JOIN LATERAL (
        VALUES (0::smallint, ''), (1::smallint, CASE f.class WHEN 0 THEN 'critical' WHEN 1 THEN 'standard' ELSE 'background' END),
            (2::smallint, f.tenant),
            (4::smallint, CASE f.class WHEN 0 THEN 'critical' WHEN 1 THEN 'standard' ELSE 'background' END || ':' || f.tenant)
    ) AS k(scope, key)
    GROUP BY k.scope, k.key
    -- Of a peer the calls count as well.
    UNION ALL SELECT 3::smallint, p.peer, sum(p.queued), sum(p.running), sum(p.deferred), sum(p.tokens), sum(p.usd_micros), sum(p.bytes)
    FROM (
        SELECT f.peer, h.queued, h.running, h.deferred, h.tokens, h.usd_micros, h.bytes FROM held h JOIN tidegate.flow f ON f.id = h.flow_id WHERE f.peer <> ''
        UNION ALL SELECT peer, (taken_ms IS NULL)::int, (taken_ms IS NOT NULL)::int, 0, 0, 0, 0 FROM tidegate.permit
    ) p
    GROUP BY p.peer
    UNION ALL SELECT 7::smallint, peer, count(*), 0, 0, 0, 0, 0 FROM tidegate.permit WHERE taken_ms IS NULL GROUP BY peer
    -- Of a session only its slots are counted.
    UNION ALL SELECT 5::smallint, s.session_id::text, 0, count(*), 0, 0, 0, 0
    FROM (SELECT session_id FROM tidegate.lease UNION ALL SELECT session_id FROM tidegate.ready WHERE session_id IS NOT NULL) s
    GROUP BY s.session_id
), usage_drift AS (
    SELECT 'usage ' || coalesce(u.scope, b.scope) || ' ' || coalesce(u.key, b.key) AS what,
        ARRAY[coalesce(u.queued, 0), coalesce(u.running, 0), coalesce(u.deferred, 0), coalesce(u.tokens, 0), coalesce(u.usd_micros, 0), coalesce(u.bytes, 0)]::bigint[] AS counted,
        ARRAY[coalesce(b.queued, 0), coalesce(b.running, 0), coalesce(b.deferred, 0), coalesce(b.tokens, 0), coalesce(b.usd_micros, 0), coalesce(b.bytes, 0)]::bigint[] AS found
    FROM tidegate.usage u FULL JOIN by_scope b ON b.scope = u.scope AND b.key = u.key
), flow_drift AS (
    SELECT 'flow ' || coalesce(u.flow_id, r.flow_id) AS what, ARRAY[coalesce(u.queued, 0)]::bigint[] AS counted, ARRAY[coalesce(r.queued, 0)]::bigint[] AS found
    FROM tidegate.flow_usage u FULL JOIN (SELECT flow_id, count(*) AS queued FROM tidegate.ready GROUP BY flow_id) r ON r.flow_id = u.flow_id
), below AS (
    -- Lost to every claim: a task below its flow's lower bound, or in a flow that no claim visits.
    SELECT 'unreachable in flow ' || r.flow_id AS what, ARRAY[0]::bigint[] AS counted, ARRAY[count(*)]::bigint[] AS found
    FROM tidegate.ready r
    LEFT JOIN tidegate.flow_usage u ON u.flow_id = r.flow_id
    LEFT JOIN tidegate.active_flow a ON a.flow_id = r.flow_id
    WHERE u.flow_id IS NULL OR a.flow_id IS NULL OR (r.rank, r.task_id) < (u.low_rank, u.low_id) OR (r.rank, r.task_id) > (u.high_rank, u.high_id)
    GROUP BY r.flow_id
), strays AS (
    SELECT 'permit of task ' || p.task_id || ' without its lease' AS what, ARRAY[0]::bigint[] AS counted, ARRAY[count(*)]::bigint[] AS found
    FROM tidegate.permit p
    WHERE NOT EXISTS (SELECT FROM tidegate.lease l WHERE l.task_id = p.task_id AND l.deliveries = p.fence)
    GROUP BY p.task_id
    UNION ALL
    SELECT 'permits of task ' || p.task_id, ARRAY[1]::bigint[], ARRAY[count(*)]::bigint[] FROM tidegate.permit p GROUP BY p.task_id HAVING count(*) > 1
), places AS (
    SELECT task_id, count(*) AS n FROM held GROUP BY task_id
), misplaced AS (
    SELECT 'task ' || p.task_id || ' in places' AS what, ARRAY[1]::bigint[] AS counted, ARRAY[p.n]::bigint[] AS found FROM places p WHERE p.n <> 1
    UNION ALL
    SELECT 'task ' || t.id || ' ended, in places', ARRAY[0]::bigint[], ARRAY[1]::bigint[] FROM places p JOIN tidegate.task t ON t.id = p.task_id WHERE $1 AND t.status IS NOT NULL
    UNION ALL
    SELECT 'task ' || p.task_id || ' without a record', ARRAY[1]::bigint[], ARRAY[0]::bigint[]
    FROM places p WHERE $1 AND NOT EXISTS (SELECT FROM tidegate.task t WHERE t.id = p.task_id)
    UNION ALL
    SELECT 'task ' || t.id || ' nowhere', ARRAY[1]::bigint[], ARRAY[0]::bigint[]
    FROM tidegate.task t WHERE $1 AND t.status IS NULL AND NOT EXISTS (SELECT FROM places p WHERE p.task_id = t.id)
)
SELECT what, counted, found FROM usage_drift WHERE counted <> found
UNION ALL SELECT what, counted, found FROM flow_drift WHERE counted <> found
UNION ALL SELECT what, counted, found FROM below
UNION ALL SELECT what, counted, found FROM strays
UNION ALL SELECT what, counted, found FROM misplaced
LIMIT 1000
