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
    FROM unnest($33::uuid[], $34::text[], $35::text[], $36::bigint[], $37::int[], $38::smallint[], $39::smallint[], $40::text[], $41::text[],
            $42::text[], $43::text[], $44::boolean[], $45::bigint[], $46::bigint[], $47::text[], $48::bigint[], $49::boolean[], $50::boolean[],
            $59::smallint[])
        AS d(id, status, reason, started_ms, deliveries, failures, losses, worker, result,
            error_type, error_message, error_retryable, actual_tokens, actual_usd_micros, detail, delivered_ms, acknowledged, cancelled, attempt)
    WHERE t.id = d.id AND t.status IS NULL
    RETURNING 1
), unready AS (
    -- Found behind a LIMIT and taken by place, as in release.sql.
    DELETE FROM tidegate.ready WHERE ctid = ANY(ARRAY(
        SELECT r.at FROM unnest($51::bigint[], $52::bigint[], $53::uuid[]) AS d(flow_id, rank, task_id)
        CROSS JOIN LATERAL (
            SELECT r.ctid AS at FROM tidegate.ready r WHERE r.flow_id = d.flow_id AND r.rank = d.rank AND r.task_id = d.task_id LIMIT 1
        ) r
    ))
    RETURNING 1
), taken AS MATERIALIZED (
    SELECT r.*, d.effects, d.charged_ms, d.charged_in
    FROM unnest($54::bigint[], $55::bigint[], $56::uuid[], $57::smallint[], $60::bigint[], $61::smallint[])
        AS d(flow_id, rank, task_id, effects, charged_ms, charged_in)
    CROSS JOIN LATERAL (
        SELECT r.ctid AS at, r.* FROM tidegate.ready r WHERE r.flow_id = d.flow_id AND r.rank = d.rank AND r.task_id = d.task_id LIMIT 1
    ) r
), unqueued AS (
    DELETE FROM tidegate.ready WHERE ctid = ANY(ARRAY(SELECT at FROM taken))
    RETURNING 1
), leased AS (
    INSERT INTO tidegate.lease (task_id, session_id, flow_id, rank, started_ms, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes,
        deliveries, failures, losses, max_attempts, effects, enqueued_ms, charged_ms, charged_in)
    SELECT task_id, $58::uuid, flow_id, rank, $14::bigint, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes,
        deliveries + 1, failures, losses, max_attempts, effects, enqueued_ms, charged_ms, charged_in
    FROM taken
)
SELECT l.*, (SELECT count(*) FROM ended) AS ended, (SELECT count(*) FROM unready) AS unready, (SELECT count(*) FROM unqueued) AS leased
FROM ledger l
