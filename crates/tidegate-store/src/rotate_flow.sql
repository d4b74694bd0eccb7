-- The same as rotate_usage.sql for the moving rows of flows. Holds: the cell's row. Index: flow_usage's key, downwards.
WITH newest AS MATERIALIZED (
    SELECT u.at, u.version
    FROM (SELECT unnest($1::bigint[]) AS flow_id) d
    CROSS JOIN LATERAL (
        SELECT u.ctid AS at, u.version FROM tidegate.flow_usage u
        WHERE u.flow_id = d.flow_id ORDER BY u.flow_id DESC, u.generation DESC LIMIT 1
    ) u
), old AS (
    DELETE FROM tidegate.flow_usage WHERE ctid = ANY(ARRAY(SELECT at FROM newest WHERE version >= $2))
    RETURNING *
)
INSERT INTO tidegate.flow_usage (flow_id, generation, queued, low_rank, low_id, high_rank, high_id)
SELECT flow_id, generation + 1, queued, low_rank, low_id, high_rank, high_id FROM old
