-- What the cell holds, for the door. Holds: the cell's row. Index: usage from the newest generation down.
SELECT n.now_ms, u.queued, u.running, u.deferred, u.bytes,
    CASE WHEN u.deferred = 0 THEN 0
        ELSE (SELECT count(*) FROM (SELECT FROM tidegate.deferred d WHERE d.eligible_ms <= (SELECT tidegate.now_ms()) LIMIT 10000) due)
    END AS due_deferred
FROM (SELECT tidegate.now_ms() AS now_ms) n
CROSS JOIN LATERAL (
    SELECT u.queued, u.running, u.deferred, u.bytes FROM tidegate.usage u
    WHERE u.scope = 0 AND u.key = '' ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
) u
