-- Takes away the permits that the tasks $1 own under the fences $2, in the transaction that ends their leases: one of each
-- at most, the LIMIT is for the plan. Holds: the cell's row; index: permit's key.
WITH found AS MATERIALIZED (
    SELECT p.* FROM unnest($1::uuid[], $2::int[]) AS d(task_id, fence)
    CROSS JOIN LATERAL (
        SELECT p.ctid AS at, p.peer, p.taken_ms IS NOT NULL AS taken FROM tidegate.permit p
        WHERE p.task_id = d.task_id AND p.fence = d.fence LIMIT 16
    ) p
), gone AS (
    DELETE FROM tidegate.permit WHERE ctid = ANY(ARRAY(SELECT at FROM found))
)
SELECT peer, taken FROM found
