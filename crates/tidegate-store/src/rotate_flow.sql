-- Replaces the moving rows of flows that have had many versions by their next generation. Holds: the cell's row.
WITH old AS (
    DELETE FROM tidegate.flow_usage u USING unnest($1::bigint[]) AS d(flow_id)
    WHERE u.flow_id = d.flow_id AND u.version >= $2
    RETURNING u.*
)
INSERT INTO tidegate.flow_usage (flow_id, generation, queued, low_rank, low_id, high_rank, high_id)
SELECT flow_id, generation + 1, queued, low_rank, low_id, high_rank, high_id FROM old
