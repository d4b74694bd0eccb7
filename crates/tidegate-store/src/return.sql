-- Tasks whose attempt settled without ending them go to wait. Holds: the cell's row; index: task's key.
WITH d AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[],
            $11::int[], $12::int[], $13::smallint[], $14::smallint[], $15::smallint[], $16::bigint[], $17::text[], $18::text[], $19::text[], $20::boolean[], $21::smallint[], $22::bigint[])
        AS d(task_id, flow_id, rank, eligible_ms, reason, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros,
            bytes, deliveries, failures, losses, max_attempts, started_ms, worker, error_type, error_message, error_retryable, attempt, enqueued_ms)
), waits AS (
    INSERT INTO tidegate.deferred (task_id, flow_id, rank, eligible_ms, reason, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros,
        bytes, deliveries, failures, losses, max_attempts, enqueued_ms)
    SELECT task_id, flow_id, rank, eligible_ms, reason, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros,
        bytes, deliveries, failures, losses, max_attempts, enqueued_ms
    FROM d
)
UPDATE tidegate.task t
SET flow_id = d.flow_id, attempt = d.attempt, deliveries = d.deliveries, failures = d.failures, losses = d.losses, started_ms = d.started_ms, worker = d.worker,
    error_type = coalesce(d.error_type, t.error_type), error_message = coalesce(d.error_message, t.error_message),
    error_retryable = coalesce(d.error_retryable, t.error_retryable)
FROM d WHERE t.id = d.task_id AND t.status IS NULL
