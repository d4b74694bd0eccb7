, t AS MATERIALIZED (
    -- The admitted: records, and a place for each. Appended to ledger.sql. Holds: the cell's row.
    SELECT d.*, f.class, f.tenant, f.kind, nullif(f.peer, '') AS peer
    FROM unnest($30::uuid[], $31::bigint[], $32::bigint[], $33::bigint[], $34::bigint[], $35::bigint[], $36::bigint[], $37::smallint[],
            $38::smallint[], $39::bigint[], $40::bigint[], $41::int[], $42::text[], $43::int[], $44::int[],
            $45::bigint[], $46::text[], $47::uuid[], $48::text[], $49::text[], $50::text[], $51::text[], $52::text[], $53::text[], $59::uuid[])
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
        session_id, reserved_ms)
    SELECT flow_id, rank, id, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, octet_length(payload), max_attempts,
        session_id, CASE WHEN session_id IS NOT NULL THEN $14::bigint END
    FROM t WHERE t.deferred IS NULL
), deferred AS (
    INSERT INTO tidegate.deferred (task_id, flow_id, rank, eligible_ms, reason, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros,
        bytes, max_attempts)
    SELECT id, flow_id, rank, coalesce(not_before_ms, $14::bigint), t.deferred, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros,
        octet_length(payload), max_attempts
    FROM t WHERE t.deferred IS NOT NULL
), keyed AS (
    INSERT INTO tidegate.idempotency (tenant, key, body_sha256, task_id, expires_ms)
    SELECT k.tenant, k.key, k.body_sha256, k.task_id, $14::bigint + $58::bigint
    FROM unnest($54::text[], $55::text[], $56::bytea[], $57::uuid[]) AS k(tenant, key, body_sha256, task_id)
    ON CONFLICT (tenant, key) DO UPDATE SET body_sha256 = excluded.body_sha256, task_id = excluded.task_id, expires_ms = excluded.expires_ms
)
SELECT * FROM ledger
