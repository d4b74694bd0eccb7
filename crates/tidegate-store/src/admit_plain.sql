, t AS MATERIALIZED (
    -- The same as admit.sql for a batch in which every task may run at once and says nothing out of the ordinary, as
    -- most batches do: half the columns and two tables fewer. Appended to the ledger. Holds: the cell's row.
    SELECT d.*, f.class, f.tenant, f.kind, nullif(f.peer, '') AS peer
    FROM unnest($33::uuid[], $34::bigint[], $35::bigint[], $36::bigint[], $37::bigint[], $38::bigint[], $39::bigint[], $40::smallint[],
            $41::smallint[], $42::bigint[], $43::bigint[], $44::int[], $45::text[], $46::int[], $47::int[])
        AS d(id, flow_id, rank, enqueued_ms, deadline_ms, min_useful_ms, attempt_timeout_ms, max_attempts,
            priority, tokens, usd_micros, admission_wait_ms, payload, depth, fanout)
    JOIN tidegate.flow f ON f.id = d.flow_id
), recorded AS (
    INSERT INTO tidegate.task (id, tenant, kind, peer, class, priority, flow_id, rank, enqueued_ms, deadline_ms, min_useful_ms,
        attempt_timeout_ms, max_attempts, depth, fanout, tokens, usd_micros, admission_wait_ms, payload)
    SELECT id, tenant, kind, peer, class, priority, flow_id, rank, enqueued_ms, deadline_ms, min_useful_ms,
        attempt_timeout_ms, max_attempts, depth, fanout, tokens, usd_micros, admission_wait_ms, payload
    FROM t
), queued AS (
    INSERT INTO tidegate.ready (flow_id, rank, task_id, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes, max_attempts, enqueued_ms)
    SELECT flow_id, rank, id, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, octet_length(payload), max_attempts, enqueued_ms
    FROM t
)
SELECT * FROM ledger
