, ended AS (
    -- The same as changes.sql for a turn in which every task that ends has completed with nothing to tell but its
    -- result, and nothing leaves the queue but to be run, as most turns are. Arrays are unnested as in
    -- admit_plain.sql. Appended to the ledger without its wake. Holds: the cell's row; index: task's key.
    UPDATE tidegate.task t
    SET status = 'COMPLETED', finished_ms = $14::bigint, started_ms = d.started_ms, attempt = d.failures + 1,
        deliveries = d.deliveries, failures = d.failures, losses = d.losses, worker = d.worker, result = d.result,
        error_type = NULL, error_message = NULL, error_retryable = NULL,
        actual_tokens = nullif(d.tokens, -1), actual_usd_micros = nullif(d.usd_micros, -1)
    FROM (
        SELECT unnest($33::uuid[]) AS id, unnest($34::text[]) AS result, unnest($35::bigint[]) AS started_ms, unnest($36::int[]) AS deliveries,
            unnest($37::smallint[]) AS failures, unnest($38::smallint[]) AS losses, unnest($39::bigint[]) AS tokens, unnest($40::bigint[]) AS usd_micros, unnest($41::text[]) AS worker
    ) d
    WHERE t.id = d.id AND t.status IS NULL
    RETURNING 1
), taken AS MATERIALIZED (
    -- Found behind a LIMIT and taken by place, as in release.sql.
    SELECT r.*, d.for_session, d.effects, d.charged_ms, d.charged_in
    FROM (
        SELECT unnest($42::uuid[]) AS task_id, unnest($43::bigint[]) AS flow_id, unnest($44::bigint[]) AS rank, unnest($45::smallint[]) AS effects, unnest($46::uuid[]) AS for_session,
            unnest($47::bigint[]) AS charged_ms, unnest($48::smallint[]) AS charged_in
    ) d
    CROSS JOIN LATERAL (
        SELECT r.ctid AS at, r.* FROM tidegate.ready r
        WHERE r.flow_id = d.flow_id AND r.rank = d.rank AND r.task_id = d.task_id LIMIT 1
    ) r
), unqueued AS (
    DELETE FROM tidegate.ready WHERE ctid = ANY(ARRAY(SELECT at FROM taken))
    RETURNING 1
), leased AS (
    INSERT INTO tidegate.lease (task_id, session_id, flow_id, rank, started_ms, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes,
        deliveries, failures, losses, max_attempts, effects, enqueued_ms, charged_ms, charged_in)
    SELECT task_id, for_session, flow_id, rank, $14::bigint, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes,
        deliveries + 1, failures, losses, max_attempts, effects, enqueued_ms, charged_ms, charged_in
    FROM taken
)
SELECT l.*, (SELECT count(*) FROM ended) AS ended, 0::bigint AS unready, (SELECT count(*) FROM unqueued) AS leased
FROM ledger l
