-- Marks those of the stopped tasks ($1) that have living children which nobody asked to stop. Holds: the cell's row;
-- comes after what the same transaction ends and asks. Indexes: task's key, task_parent, cancel_request's key.
INSERT INTO tidegate.cancel_parent (task_id, tenant)
SELECT t.id, t.tenant
FROM unnest($1::uuid[]) AS d(id)
JOIN tidegate.task t ON t.id = d.id
WHERE EXISTS (
    SELECT FROM tidegate.task c WHERE c.parent_id = t.id AND c.tenant = t.tenant AND c.status IS NULL
        AND NOT EXISTS (SELECT FROM tidegate.cancel_request r WHERE r.task_id = c.id)
)
ON CONFLICT DO NOTHING
