-- The same as release.sql for leases that the session remembers having taken: a lease does not change while it lasts, so
-- only what came beside it is told. Holds: the cell's row; index: lease's key.
WITH found AS MATERIALIZED (
    SELECT l.at, d.task_id, d.fence, d.n
    FROM (SELECT unnest($1::uuid[]) AS task_id, unnest($2::int[]) AS fence, generate_subscripts($1::uuid[], 1)::bigint AS n) d
    CROSS JOIN LATERAL (SELECT l.ctid AS at FROM tidegate.lease l WHERE l.task_id = d.task_id AND l.deliveries = d.fence LIMIT 1) l
), gone AS (
    DELETE FROM tidegate.lease WHERE ctid = ANY(ARRAY(SELECT at FROM found))
)
SELECT (SELECT tidegate.now_ms()) AS now_ms, l.n, c.reason AS cancel_reason, c.delivered_ms,
    coalesce((SELECT true FROM tidegate.permit p WHERE p.task_id = l.task_id AND p.fence = l.fence LIMIT 1), false) AS permits
FROM found l LEFT JOIN tidegate.cancel_request c ON c.task_id = l.task_id
