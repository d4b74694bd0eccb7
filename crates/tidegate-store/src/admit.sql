, t AS MATERIALIZED (
    -- The admitted: records, and a place for each. Appended to the ledger. Holds: the cell's row.
    SELECT unnest($33::uuid[]) AS id, unnest($34::bigint[]) AS flow_id, unnest($35::bigint[]) AS rank, unnest($36::bigint[]) AS enqueued_ms,
        unnest($37::bigint[]) AS deadline_ms, unnest($38::bigint[]) AS min_useful_ms, unnest($39::bigint[]) AS attempt_timeout_ms,
        unnest($40::smallint[]) AS max_attempts, unnest($41::smallint[]) AS priority, unnest($42::bigint[]) AS tokens,
        unnest($43::bigint[]) AS usd_micros, unnest($44::int[]) AS admission_wait_ms, unnest($45::text[]) AS payload,
        unnest($46::int[]) AS depth, unnest($47::int[]) AS fanout, unnest($48::smallint[]) AS class, unnest($49::text[]) AS tenant,
        unnest($50::text[]) AS kind, unnest($51::text[]) AS peer, unnest($52::int[]) AS bytes, unnest($53::bigint[]) AS not_before_ms,
        unnest($54::text[]) AS deferred, unnest($55::uuid[]) AS parent_id, unnest($56::text[]) AS cancellation_token,
        unnest($57::text[]) AS workflow_id, unnest($58::text[]) AS idempotency_key, unnest($59::text[]) AS traceparent,
        unnest($60::text[]) AS labels, unnest($61::text[]) AS notes, unnest($62::uuid[]) AS session_id
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
    SELECT flow_id, rank, id, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes, max_attempts,
        session_id, CASE WHEN session_id IS NOT NULL THEN $14::bigint END, enqueued_ms
    FROM t WHERE t.deferred IS NULL
), deferred AS (
    INSERT INTO tidegate.deferred (task_id, flow_id, rank, eligible_ms, reason, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros,
        bytes, max_attempts, enqueued_ms)
    SELECT id, flow_id, rank, coalesce(not_before_ms, $14::bigint), t.deferred, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros,
        bytes, max_attempts, greatest(enqueued_ms, not_before_ms)
    FROM t WHERE t.deferred IS NOT NULL
), keyed AS (
    INSERT INTO tidegate.idempotency (tenant, key, body_sha256, task_id, expires_ms)
    SELECT k.*, $14::bigint + $67::bigint
    FROM (
        SELECT unnest($63::text[]) AS tenant, unnest($64::text[]) AS key, unnest($65::bytea[]) AS body_sha256, unnest($66::uuid[]) AS task_id
    ) k
    ON CONFLICT (tenant, key) DO UPDATE SET body_sha256 = excluded.body_sha256, task_id = excluded.task_id, expires_ms = excluded.expires_ms
)
SELECT * FROM ledger
