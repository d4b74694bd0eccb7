-- Marked parents, at most $1, and with each its living children which nobody asked to stop, at most $1 altogether. Takes
-- no lock: whoever cancels them looks again. Indexes: cancel_parent's key, task_parent, cancel_request's key.
SELECT m.task_id, m.tenant, c.id
FROM (SELECT task_id, tenant FROM tidegate.cancel_parent ORDER BY task_id LIMIT $1::bigint) m
LEFT JOIN LATERAL (
    SELECT c.id FROM tidegate.task c
    WHERE c.parent_id = m.task_id AND c.tenant = m.tenant AND c.status IS NULL
        AND NOT EXISTS (SELECT FROM tidegate.cancel_request r WHERE r.task_id = c.id)
    ORDER BY c.parent_id, c.id LIMIT $1::bigint
) c ON true
LIMIT $1::bigint
