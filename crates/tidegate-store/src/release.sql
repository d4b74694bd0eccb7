-- Takes the leases of settled attempts away; a fence that is not the lease's own takes nothing. Holds: the cell's row;
-- index: lease's key. The rows tell what the settlement is decided on,
-- in the same places as those of reap.sql.
DELETE FROM tidegate.lease l
USING unnest($1::uuid[], $2::int[]) WITH ORDINALITY AS d(task_id, fence, n)
LEFT JOIN tidegate.cancel_request c ON c.task_id = d.task_id
WHERE l.task_id = d.task_id AND l.deliveries = d.fence
RETURNING (SELECT tidegate.now_ms()) AS now_ms, l.task_id, l.flow_id, l.rank, l.started_ms, l.deadline_ms, l.min_useful_ms, l.attempt_timeout_ms,
    l.tokens, l.usd_micros, l.bytes, l.deliveries, l.failures, l.losses, l.max_attempts, l.effects, c.reason AS cancel_reason,
    c.delivered_ms, NULL::text AS worker, l.session_id, l.enqueued_ms, l.charged_ms, l.charged_in,
    EXISTS (SELECT FROM tidegate.permit p WHERE p.task_id = l.task_id AND p.fence = l.deliveries) AS permits, d.n
