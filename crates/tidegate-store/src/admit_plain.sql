, recorded AS (
    -- The same as admit.sql for a batch in which every task may run at once and says nothing out of the ordinary, as
    -- most batches do: half the columns and two tables fewer. Arrays are unnested side by side in the list of what is
    -- selected, which takes a third of the time that they take in FROM, where each is kept in a store of its own first.
    -- Appended to the ledger. Holds: the cell's row.
    INSERT INTO tidegate.task (id, flow_id, rank, enqueued_ms, deadline_ms, min_useful_ms, attempt_timeout_ms, max_attempts, priority,
        tokens, usd_micros, admission_wait_ms, payload, depth, fanout, class, tenant, kind, peer)
    SELECT unnest($33::uuid[]), unnest($34::bigint[]), unnest($35::bigint[]), unnest($36::bigint[]), unnest($37::bigint[]),
        unnest($38::bigint[]), unnest($39::bigint[]), unnest($40::smallint[]), unnest($41::smallint[]), unnest($42::bigint[]),
        unnest($43::bigint[]), unnest($44::int[]), unnest($45::text[]), unnest($46::int[]), unnest($47::int[]),
        unnest($48::smallint[]), unnest($49::text[]), unnest($50::text[]), unnest($51::text[])
), queued AS (
    INSERT INTO tidegate.ready (task_id, flow_id, rank, enqueued_ms, deadline_ms, min_useful_ms, attempt_timeout_ms, max_attempts,
        tokens, usd_micros, bytes)
    SELECT unnest($33::uuid[]), unnest($34::bigint[]), unnest($35::bigint[]), unnest($36::bigint[]), unnest($37::bigint[]),
        unnest($38::bigint[]), unnest($39::bigint[]), unnest($40::smallint[]), unnest($42::bigint[]), unnest($43::bigint[]), unnest($52::int[])
)
SELECT * FROM ledger
