, t AS MATERIALIZED (
    -- The admitted: records, and a place for each. Appended to the ledger. Holds: the cell's row.
    SELECT d.*, f.class, f.tenant, f.kind, nullif(f.peer, '') AS peer
    FROM unnest($33::uuid[], $34::bigint[], $35::bigint[], $36::bigint[], $37::bigint[], $38::bigint[], $39::bigint[], $40::smallint[],
            $41::smallint[], $42::bigint[], $43::bigint[], $44::int[], $45::text[], $46::int[], $47::int[],
            $48::bigint[], $49::text[], $50::uuid[], $51::text[], $52::text[], $53::text[], $54::text[], $55::text[], $56::text[], $62::uuid[])
        AS d(id, flow_id, rank, enqueued_ms, deadline_ms, min_useful_ms, attempt_timeout_ms, max_attempts,
            priority, tokens, usd_micros, admission_wait_ms, payload, depth, fanout,
            not_before_ms, deferred, parent_id, cancellation_token, workflow_id, idempotency_key, traceparent, labels, notes, session_id)
    JOIN tidegate.flow f ON f.id = d.flow_id
), recorded AS (
    INSERT INTO tidegate.task (id, tenant, kind, peer, class, priority, flow_id, rank, enqueued_ms, not_before_ms, deadline_ms, min_useful_ms,
        attempt_timeout_ms, max_attempts, depth, fanout, tokens, usd_micros, admission_wait_ms, parent_id, cancellation_token, workflow_id,
        idempotency_key, traceparent, labels, priority_notes, payload)
    SELECT id, tenant, kind, peer, class, priority, flow_id, rank, enqueued_ms, not_before_ms, deadline_ms, min_useful_ms,
        attempt_timeout_ms, max_attempts, depth, fanout, tokens, usd_micros, admission_wait_ms, parent_id, cancellation_token, workflow_id,
        idempotency_key, traceparent, labels::jsonb, string_to_array(notes, E'\n'), payload
    FROM t
), queued AS (
    INSERT INTO tidegate.ready (flow_id, rank, task_id, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes, max_attempts,
        session_id, reserved_ms, enqueued_ms)
    SELECT flow_id, rank, id, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, octet_length(payload), max_attempts,
        session_id, CASE WHEN session_id IS NOT NULL THEN $14::bigint END, enqueued_ms
    FROM t WHERE t.deferred IS NULL
), deferred AS (
    INSERT INTO tidegate.deferred (task_id, flow_id, rank, eligible_ms, reason, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros,
        bytes, max_attempts, enqueued_ms)
    SELECT id, flow_id, rank, coalesce(not_before_ms, $14::bigint), t.deferred, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros,
        octet_length(payload), max_attempts, greatest(enqueued_ms, not_before_ms)
    FROM t WHERE t.deferred IS NOT NULL
), keyed AS (
    INSERT INTO tidegate.idempotency (tenant, key, body_sha256, task_id, expires_ms)
    SELECT k.tenant, k.key, k.body_sha256, k.task_id, $14::bigint + $61::bigint
    FROM unnest($57::text[], $58::text[], $59::bytea[], $60::uuid[]) AS k(tenant, key, body_sha256, task_id)
    ON CONFLICT (tenant, key) DO UPDATE SET body_sha256 = excluded.body_sha256, task_id = excluded.task_id, expires_ms = excluded.expires_ms
)
SELECT * FROM ledger
