, queued AS (
    -- The places of a batch whose records are written already, by record_early.sql. Appended to the ledger. Holds: the
    -- cell's row.
    INSERT INTO tidegate.ready (flow_id, rank, task_id, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes, max_attempts, enqueued_ms)
    SELECT d.flow_id, d.rank, d.id, d.deadline_ms, d.min_useful_ms, d.attempt_timeout_ms, d.tokens, d.usd_micros, d.bytes, d.max_attempts, d.enqueued_ms
    FROM unnest($33::uuid[], $34::bigint[], $35::bigint[], $36::bigint[], $37::bigint[], $38::bigint[], $39::bigint[], $40::smallint[],
            $41::bigint[], $42::bigint[], $43::int[])
        AS d(id, flow_id, rank, enqueued_ms, deadline_ms, min_useful_ms, attempt_timeout_ms, max_attempts, tokens, usd_micros, bytes)
)
SELECT * FROM ledger
