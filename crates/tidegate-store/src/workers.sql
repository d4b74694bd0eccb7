-- Live sessions and what runs on them. Takes no lock. Indexes: session by its key, heartbeat by its own; usage from the
-- newest generation down. Whoever asks adds which.
SELECT s.id, s.worker, s.kinds, s.slots, s.draining, s.started_ms, s.lease_ms, h.expires_ms, coalesce(u.running, 0) AS running
FROM tidegate.session s
JOIN tidegate.heartbeat h ON h.session_id = s.id AND h.expires_ms > (SELECT tidegate.now_ms())
LEFT JOIN LATERAL (
    SELECT u.running FROM tidegate.usage u
    WHERE u.scope = 5 AND u.key = s.id::text ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
) u ON true
