-- The attempts of task $1 of tenant $2: those on record, the one that ended the task, and the one that runs.
SELECT a.fence, a.number::int AS number, a.worker, a.started_ms, a.ended_ms, a.outcome, a.reason, a.error_type, a.error_message, a.error_retryable, a.result
FROM tidegate.task t JOIN tidegate.attempt a ON a.task_id = t.id
WHERE t.id = $1 AND t.tenant = $2
UNION ALL
SELECT t.deliveries, t.attempt::int, t.worker, t.started_ms, t.finished_ms, lower(t.status), t.reason, t.error_type, t.error_message, t.error_retryable, NULL
FROM tidegate.task t
WHERE t.id = $1 AND t.tenant = $2 AND t.status IS NOT NULL AND t.deliveries > 0
    AND NOT EXISTS (SELECT FROM tidegate.attempt a WHERE a.task_id = t.id AND a.fence = t.deliveries)
UNION ALL
SELECT l.deliveries, l.failures + 1, s.worker, l.started_ms, NULL, 'running', NULL, NULL, NULL, NULL, NULL
FROM tidegate.task t JOIN tidegate.lease l ON l.task_id = t.id LEFT JOIN tidegate.session s ON s.id = l.session_id
WHERE t.id = $1 AND t.tenant = $2 AND t.status IS NULL
ORDER BY 1
