, ended AS (
    -- The same as changes.sql for a turn in which every task that ends has completed under the same worker with nothing
    -- to tell but its result, and nothing leaves the queue but to be run, as most turns are. What has no NULL and a fixed
    -- width is taken from its array by place: that costs a third of a column of unnest. Appended to the ledger without its wake.
    -- Holds: the cell's row; index: task's key.
    UPDATE tidegate.task t
    SET status = 'COMPLETED', finished_ms = $14::bigint, started_ms = ($35::bigint[])[d.n], attempt = ($37::smallint[])[d.n] + 1,
        deliveries = ($36::int[])[d.n], failures = ($37::smallint[])[d.n], losses = ($38::smallint[])[d.n], worker = $41::text, result = d.result,
        error_type = NULL, error_message = NULL, error_retryable = NULL,
        actual_tokens = nullif(($39::bigint[])[d.n], -1), actual_usd_micros = nullif(($40::bigint[])[d.n], -1)
    FROM unnest($33::uuid[], $34::text[]) WITH ORDINALITY AS d(id, result, n)
    WHERE t.id = d.id AND t.status IS NULL
    RETURNING 1
), taken AS MATERIALIZED (
    -- Found behind a LIMIT and taken by place, as in release.sql.
    SELECT r.*, ($45::smallint[])[d.n] AS effects, ($47::bigint[])[d.n] AS charged_ms, ($48::smallint[])[d.n] AS charged_in
    FROM unnest($42::uuid[]) WITH ORDINALITY AS d(task_id, n)
    CROSS JOIN LATERAL (
        SELECT r.ctid AS at, r.* FROM tidegate.ready r
        WHERE r.flow_id = ($43::bigint[])[d.n] AND r.rank = ($44::bigint[])[d.n] AND r.task_id = d.task_id LIMIT 1
    ) r
), unqueued AS (
    DELETE FROM tidegate.ready WHERE ctid = ANY(ARRAY(SELECT at FROM taken))
    RETURNING 1
), leased AS (
    INSERT INTO tidegate.lease (task_id, session_id, flow_id, rank, started_ms, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes,
        deliveries, failures, losses, max_attempts, effects, enqueued_ms, charged_ms, charged_in)
    SELECT task_id, $46::uuid, flow_id, rank, $14::bigint, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes,
        deliveries + 1, failures, losses, max_attempts, effects, enqueued_ms, charged_ms, charged_in
    FROM taken
)
SELECT l.*, (SELECT count(*) FROM ended) AS ended, 0::bigint AS unready, (SELECT count(*) FROM unqueued) AS leased
FROM ledger l
