-- The flows in which tasks wait, and with $2 the worst of those that wait in classes below it. Holds: the cell's row.
-- Indexes: active_flow, flow_usage and ready by their keys; ready from the flow's upper bound down.
-- $1 flows at most; one more is read, so that the reader sees that there are more. $3 candidates of a flow at most.
WITH flows AS MATERIALIZED (
    SELECT a.flow_id, f.class, f.lane, u.queued, u.high_rank, u.high_id
    FROM (SELECT a.flow_id FROM tidegate.active_flow a ORDER BY a.flow_id LIMIT $1::int + 1) a
    JOIN tidegate.flow f ON f.id = a.flow_id
    CROSS JOIN LATERAL (
        SELECT u.queued, u.high_rank, u.high_id FROM tidegate.flow_usage u
        WHERE u.flow_id = a.flow_id ORDER BY u.flow_id DESC, u.generation DESC LIMIT 1
    ) u
)
SELECT f.flow_id, f.queued, NULL::bigint AS rank, NULL::uuid AS task_id, NULL::bigint AS tokens, NULL::bigint AS usd_micros, NULL::bigint AS bytes
FROM flows f
UNION ALL
SELECT f.flow_id, f.queued, r.rank, r.task_id, r.tokens, r.usd_micros, r.bytes
FROM flows f
CROSS JOIN LATERAL (
    SELECT r.rank, r.task_id, r.tokens, r.usd_micros, r.bytes::bigint AS bytes FROM tidegate.ready r
    WHERE r.flow_id = f.flow_id AND (r.rank, r.task_id) <= (f.high_rank, f.high_id)
    ORDER BY r.flow_id DESC, r.rank DESC, r.task_id DESC LIMIT $3::int
) r
WHERE $2::smallint IS NOT NULL AND f.class > $2::smallint AND f.lane <> 0 AND f.queued > 0
