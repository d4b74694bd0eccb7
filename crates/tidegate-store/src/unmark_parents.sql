-- Takes the marks off those parents ($1) whose children have all ended or been asked to stop. Holds: the cell's row.
-- Indexes: cancel_parent's key, task_parent, cancel_request's key.
DELETE FROM tidegate.cancel_parent m
WHERE m.task_id = ANY($1::uuid[]) AND NOT EXISTS (
    SELECT FROM tidegate.task c WHERE c.parent_id = m.task_id AND c.tenant = m.tenant AND c.status IS NULL
        AND NOT EXISTS (SELECT FROM tidegate.cancel_request r WHERE r.task_id = c.id)
)
