-- Takes away leases whose session is gone or silent for longer than a lease ($1 where the session's own is not known),
-- at most $2; none until one lease time after the database itself came back. Holds: the cell's row. The lease table
-- is as small as the fleet's slots, and is looked through whole.
DELETE FROM tidegate.lease l
USING (
    SELECT l.task_id
    FROM tidegate.lease l
    LEFT JOIN tidegate.session s ON s.id = l.session_id
    WHERE NOT EXISTS (SELECT FROM tidegate.heartbeat h WHERE h.session_id = l.session_id AND h.expires_ms > (SELECT tidegate.now_ms()))
        AND (SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000)::bigint) + coalesce(s.lease_ms, $1::bigint) < (SELECT tidegate.now_ms())
    LIMIT $2
) d
LEFT JOIN tidegate.cancel_request c ON c.task_id = d.task_id
WHERE l.task_id = d.task_id
RETURNING (SELECT tidegate.now_ms()) AS now_ms, l.task_id, l.flow_id, l.rank, l.started_ms, l.deadline_ms, l.min_useful_ms, l.attempt_timeout_ms,
    l.tokens, l.usd_micros, l.bytes, l.deliveries, l.failures, l.losses, l.max_attempts, l.effects, c.reason AS cancel_reason, c.delivered_ms,
    (SELECT s.worker FROM tidegate.session s WHERE s.id = l.session_id) AS worker,
    l.session_id, l.enqueued_ms, l.charged_ms, l.charged_in,
    coalesce((SELECT true FROM tidegate.permit p WHERE p.task_id = l.task_id AND p.fence = l.deliveries LIMIT 1), false) AS permits
