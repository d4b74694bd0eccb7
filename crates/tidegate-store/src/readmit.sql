-- Tasks whose reserved slot nobody claimed go to the queue, or among the deferred. Holds: the cell's row.
WITH d AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::boolean[]) AS d(task_id, flow_id, rank, to_flow, queued)
), gone AS (
    DELETE FROM tidegate.ready r USING d
    WHERE r.flow_id = d.flow_id AND r.rank = d.rank AND r.task_id = d.task_id
    RETURNING r.*, d.to_flow, d.queued
), queued AS (
    INSERT INTO tidegate.ready (flow_id, rank, task_id, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes,
        deliveries, failures, losses, max_attempts, enqueued_ms)
    SELECT to_flow, rank, task_id, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros, bytes, deliveries, failures, losses, max_attempts, enqueued_ms
    FROM gone WHERE gone.queued
), deferred AS (
    INSERT INTO tidegate.deferred (task_id, flow_id, rank, eligible_ms, reason, deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros,
        bytes, deliveries, failures, losses, max_attempts, enqueued_ms)
    SELECT task_id, to_flow, rank, $6::bigint, 'overload', deadline_ms, min_useful_ms, attempt_timeout_ms, tokens, usd_micros,
        bytes, deliveries, failures, losses, max_attempts, enqueued_ms
    FROM gone WHERE NOT gone.queued
)
UPDATE tidegate.task t SET flow_id = gone.to_flow FROM gone WHERE t.id = gone.task_id AND t.status IS NULL
