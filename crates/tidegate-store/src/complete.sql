-- The outcomes of tasks that completed, where they are many: the same as "ended" in changes_plain.sql, as a statement of
-- its own. Holds: the cell's row; index: task's key.
UPDATE tidegate.task t
SET status = 'COMPLETED', finished_ms = $10::bigint, started_ms = ($3::bigint[])[d.n], attempt = ($5::smallint[])[d.n] + 1,
    deliveries = ($4::int[])[d.n], failures = ($5::smallint[])[d.n], losses = ($6::smallint[])[d.n], worker = $9::text, result = d.result,
    error_type = NULL, error_message = NULL, error_retryable = NULL,
    actual_tokens = nullif(($7::bigint[])[d.n], -1), actual_usd_micros = nullif(($8::bigint[])[d.n], -1)
FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS d(id, result, n)
WHERE t.id = d.id AND t.status IS NULL
