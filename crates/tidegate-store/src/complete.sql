-- The outcomes of tasks that completed, where they are many: the same as "ended" in changes_plain.sql, as a statement of
-- its own. Holds: the cell's row; index: task's key.
UPDATE tidegate.task t
SET status = 'COMPLETED', finished_ms = $10::bigint, started_ms = d.started_ms, attempt = d.failures + 1,
    deliveries = d.deliveries, failures = d.failures, losses = d.losses, worker = d.worker, result = d.result,
    error_type = NULL, error_message = NULL, error_retryable = NULL,
    actual_tokens = nullif(d.tokens, -1), actual_usd_micros = nullif(d.usd_micros, -1)
FROM (
    SELECT unnest($1::uuid[]) AS id, unnest($2::text[]) AS result, unnest($3::bigint[]) AS started_ms, unnest($4::int[]) AS deliveries,
        unnest($5::smallint[]) AS failures, unnest($6::smallint[]) AS losses, unnest($7::bigint[]) AS tokens, unnest($8::bigint[]) AS usd_micros, unnest($9::text[]) AS worker
) d
WHERE t.id = d.id AND t.status IS NULL
