-- The first waiting tasks of each flow of the kinds ($2), for a claim of $3 by session $1. Holds: the cell's row.
-- Indexes: active_flow, flow_usage and ready by their keys; ready from the flow's lower bound up.
-- $4 is where the last look ended when there are more flows than one look visits ($5). Of each flow so many are read that
-- together they are $6 % of what is wanted. Flows without room are left out by what they have in common: their peer ($7),
-- tenant ($8) or class ($9); but not those in which slots are reserved, where rows of other sessions are stepped over.
WITH near AS MATERIALIZED (
    SELECT a.flow_id, f.lane FROM tidegate.active_flow a JOIN tidegate.flow f ON f.id = a.flow_id
    WHERE a.flow_id > $4::bigint AND f.kind = ANY($2::text[])
        AND NOT EXISTS (SELECT FROM tidegate.session s WHERE s.id = $1::uuid AND s.draining)
        AND (f.lane = 0 OR (f.peer <> ALL($7::text[]) AND f.tenant <> ALL($8::text[]) AND f.class <> ALL($9::smallint[])))
    ORDER BY a.flow_id LIMIT $5::int
)
SELECT n.now_ms, n.alive, n.last_flow, w.flow_id, w.queued, w.rank, w.task_id, w.min_useful_ms, w.deadline_ms, w.attempt_timeout_ms,
    w.tokens, w.usd_micros, w.bytes, w.deliveries, w.failures, w.max_attempts, w.session_id
FROM (
    SELECT tidegate.now_ms() AS now_ms, (SELECT max(flow_id) FROM near HAVING count(*) = $5::int) AS last_flow,
        EXISTS (SELECT FROM tidegate.heartbeat h WHERE h.session_id = $1::uuid AND h.expires_ms > (SELECT tidegate.now_ms())) AS alive
) n
LEFT JOIN LATERAL (
    SELECT u.queued, r.*
    FROM near
    CROSS JOIN LATERAL (
        SELECT u.queued, u.low_rank, u.low_id FROM tidegate.flow_usage u
        WHERE u.flow_id = near.flow_id ORDER BY u.flow_id DESC, u.generation DESC LIMIT 1
    ) u
    CROSS JOIN LATERAL (
        SELECT r.* FROM tidegate.ready r
        WHERE r.flow_id = near.flow_id AND (r.rank, r.task_id) >= (u.low_rank, u.low_id)
        ORDER BY r.flow_id, r.rank, r.task_id
        LIMIT CASE WHEN near.lane = 0 THEN 1000
            ELSE (SELECT least($3::bigint, $6::bigint * $3::bigint / 100 / greatest(1, count(*)) + 8) FROM near) END
    ) r
    WHERE u.queued > 0
) w ON true
ORDER BY w.flow_id, w.rank, w.task_id
