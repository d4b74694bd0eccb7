-- Deferred tasks whose time has come go to the queue. Holds: the cell's row.
WITH gone AS (
    DELETE FROM tidegate.deferred d WHERE d.task_id = ANY($1::uuid[]) RETURNING d.*
)
INSERT INTO tidegate.ready (flow_id, rank, task_id, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes,
    deliveries, failures, losses, max_attempts, enqueued_ms)
SELECT flow_id, rank, task_id, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes, deliveries, failures, losses, max_attempts, enqueued_ms
FROM gone
