-- The next $4 tasks of a tenant ($1) with a workflow ($2), below an id ($3) and newest first: those that live (with $5
-- only if nobody asked them to stop), and the last that was looked at. Takes no lock: whoever cancels them looks again. Index: task_workflow.
WITH seen AS MATERIALIZED (
    SELECT t.id, t.status FROM tidegate.task t
    WHERE t.tenant = $1::text AND t.workflow_id = $2::text AND t.id < $3::uuid
    ORDER BY t.id DESC LIMIT $4::bigint
)
SELECT ARRAY(SELECT s.id FROM seen s WHERE s.status IS NULL
        AND NOT ($5::boolean AND EXISTS (SELECT FROM tidegate.cancel_request r WHERE r.task_id = s.id)) ORDER BY s.id DESC) AS living,
    (SELECT s.id FROM seen s ORDER BY s.id LIMIT 1) AS last
