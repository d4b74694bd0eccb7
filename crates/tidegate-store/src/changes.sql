, ended AS (
    -- The hot part of every change but admission. Appended to the ledger. Holds: the cell's row; index: task's key.
    UPDATE tidegate.task t
    SET status = d.status, reason = d.reason, finished_ms = $14::bigint, started_ms = coalesce(d.started_ms, t.started_ms),
        attempt = coalesce(d.attempt, t.attempt), deliveries = coalesce(d.deliveries, t.deliveries), failures = coalesce(d.failures, t.failures), losses = coalesce(d.losses, t.losses),
        worker = coalesce(d.worker, t.worker), result = d.result,
        -- The error of an earlier attempt stays with a task that did not complete.
        error_type = CASE WHEN d.result IS NULL THEN coalesce(d.error_type, t.error_type) END,
        error_message = CASE WHEN d.result IS NULL THEN coalesce(d.error_message, t.error_message) END,
        error_retryable = CASE WHEN d.result IS NULL THEN coalesce(d.error_retryable, t.error_retryable) END,
        actual_tokens = d.actual_tokens, actual_usd_micros = d.actual_usd_micros, detail = coalesce(d.detail, t.detail),
        cancel_requested_ms = coalesce(t.cancel_requested_ms, CASE WHEN d.cancelled THEN $14::bigint END),
        cancel_delivered_ms = coalesce(d.delivered_ms, t.cancel_delivered_ms),
        cancel_acknowledged_ms = CASE WHEN d.acknowledged THEN $14::bigint END
    FROM (
        SELECT unnest($33::uuid[]) AS id, unnest($34::text[]) AS status, unnest($35::text[]) AS reason, unnest($36::bigint[]) AS started_ms,
            unnest($37::int[]) AS deliveries, unnest($38::smallint[]) AS failures, unnest($39::smallint[]) AS losses, unnest($40::text[]) AS worker,
            unnest($41::text[]) AS result, unnest($42::text[]) AS error_type, unnest($43::text[]) AS error_message,
            unnest($44::boolean[]) AS error_retryable, unnest($45::bigint[]) AS actual_tokens, unnest($46::bigint[]) AS actual_usd_micros,
            unnest($47::text[]) AS detail, unnest($48::bigint[]) AS delivered_ms, unnest($49::boolean[]) AS acknowledged,
            unnest($50::boolean[]) AS cancelled, unnest($59::smallint[]) AS attempt
    ) d
    WHERE t.id = d.id AND t.status IS NULL
    RETURNING 1
), unready AS (
    -- Found behind a LIMIT and taken by place, as in release.sql.
    DELETE FROM tidegate.ready WHERE ctid = ANY(ARRAY(
        SELECT r.at FROM (SELECT unnest($51::bigint[]) AS flow_id, unnest($52::bigint[]) AS rank, unnest($53::uuid[]) AS task_id) d
        CROSS JOIN LATERAL (
            SELECT r.ctid AS at FROM tidegate.ready r WHERE r.flow_id = d.flow_id AND r.rank = d.rank AND r.task_id = d.task_id LIMIT 1
        ) r
    ))
    RETURNING 1
), taken AS MATERIALIZED (
    SELECT r.*, d.for_session, d.effects, d.charged_ms, d.charged_in
    FROM (
        SELECT unnest($54::bigint[]) AS flow_id, unnest($55::bigint[]) AS rank, unnest($56::uuid[]) AS task_id, unnest($57::smallint[]) AS effects, unnest($58::uuid[]) AS for_session,
            unnest($60::bigint[]) AS charged_ms, unnest($61::smallint[]) AS charged_in
    ) d
    CROSS JOIN LATERAL (
        SELECT r.ctid AS at, r.* FROM tidegate.ready r WHERE r.flow_id = d.flow_id AND r.rank = d.rank AND r.task_id = d.task_id LIMIT 1
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
SELECT l.*, (SELECT count(*) FROM ended) AS ended, (SELECT count(*) FROM unready) AS unready, (SELECT count(*) FROM unqueued) AS leased
FROM ledger l
