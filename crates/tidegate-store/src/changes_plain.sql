, ended AS (
    -- The same as changes.sql for a turn in which every task that ends has completed under the same worker with nothing
    -- to tell but its result, and nothing leaves the queue but to be run, as most turns are. What has no NULL and a fixed
    -- width is taken from its array by place: that costs a third of a column of unnest. Appended to ledger.sql.
    -- Holds: the cell's row; index: task's key.
    UPDATE tidegate.task t
    SET status = 'COMPLETED', finished_ms = $14::bigint, started_ms = ($32::bigint[])[d.n], attempt = ($34::smallint[])[d.n] + 1,
        deliveries = ($33::int[])[d.n], failures = ($34::smallint[])[d.n], losses = ($35::smallint[])[d.n], worker = $38::text, result = d.result,
        error_type = NULL, error_message = NULL, error_retryable = NULL,
        actual_tokens = nullif(($36::bigint[])[d.n], -1), actual_usd_micros = nullif(($37::bigint[])[d.n], -1)
    FROM unnest($30::uuid[], $31::text[]) WITH ORDINALITY AS d(id, result, n)
    WHERE t.id = d.id AND t.status IS NULL
    RETURNING 1
), taken AS (
    DELETE FROM tidegate.ready r USING unnest($39::uuid[]) WITH ORDINALITY AS d(task_id, n)
    WHERE r.flow_id = ($40::bigint[])[d.n] AND r.rank = ($41::bigint[])[d.n] AND r.task_id = d.task_id
    RETURNING r.*, ($42::smallint[])[d.n] AS effects
), leased AS (
    INSERT INTO tidegate.lease (task_id, session_id, flow_id, rank, started_ms, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes,
        deliveries, failures, losses, max_attempts, effects)
    SELECT task_id, $43::uuid, flow_id, rank, $14::bigint, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes,
        deliveries + 1, failures, losses, max_attempts, effects
    FROM taken
)
SELECT l.*, (SELECT count(*) FROM ended) AS ended, 0::bigint AS unready, (SELECT count(*) FROM taken) AS leased
FROM ledger l
