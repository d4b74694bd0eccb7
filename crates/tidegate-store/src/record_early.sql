-- The records of a batch in which nothing says anything out of the ordinary, before it is decided. Holds nothing that
-- others wait for.
INSERT INTO tidegate.task (id, tenant, kind, peer, class, priority, flow_id, rank, enqueued_ms, deadline_ms, min_useful_ms,
    attempt_timeout_ms, max_attempts, depth, fanout, tokens, usd_micros, admission_wait_ms, payload)
SELECT d.id, f.tenant, f.kind, nullif(f.peer, ''), f.class, d.priority, d.flow_id, d.rank, d.enqueued_ms, d.deadline_ms, d.min_useful_ms,
    d.attempt_timeout_ms, d.max_attempts, d.depth, d.fanout, d.tokens, d.usd_micros, d.admission_wait_ms, d.payload
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::smallint[],
        $9::smallint[], $10::bigint[], $11::bigint[], $12::int[], $13::text[], $14::int[], $15::int[])
    AS d(id, flow_id, rank, enqueued_ms, deadline_ms, min_useful_ms, attempt_timeout_ms, max_attempts,
        priority, tokens, usd_micros, admission_wait_ms, payload, depth, fanout)
JOIN tidegate.flow f ON f.id = d.flow_id
