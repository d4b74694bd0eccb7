-- How many wait before a task of class $1 with rank $2 and id $3, at most $4. Indexes: active_flow, flow_usage and ready
-- by their keys.
SELECT count(*)
FROM (
    SELECT
    FROM (SELECT a.flow_id FROM tidegate.active_flow a ORDER BY a.flow_id LIMIT 512) a
    JOIN tidegate.flow f ON f.id = a.flow_id
    CROSS JOIN LATERAL (
        SELECT u.queued, u.low_rank, u.low_id FROM tidegate.flow_usage u
        WHERE u.flow_id = a.flow_id ORDER BY u.flow_id DESC, u.generation DESC LIMIT 1
    ) u
    CROSS JOIN LATERAL (
        SELECT FROM tidegate.ready r
        WHERE r.flow_id = a.flow_id AND (r.rank, r.task_id) >= (u.low_rank, u.low_id)
            AND (f.class < $1::smallint OR (r.rank, r.task_id) < ($2::bigint, $3::uuid))
        ORDER BY r.flow_id, r.rank, r.task_id LIMIT $4::bigint
    ) r
    WHERE f.class <= $1::smallint AND f.lane <> 0 AND u.queued > 0
    LIMIT $4::bigint
) before
