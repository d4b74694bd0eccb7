-- Takes the answer $1, if it is there, with the leases in it that are session $2's and their records. Indexes: keys.
WITH answer AS MATERIALIZED (
    DELETE FROM tidegate.turn_answer WHERE id = $1::uuid RETURNING settled, claimed, more, reserved, again_in_ms
)
SELECT a.settled, a.more, a.again_in_ms, (SELECT tidegate.now_ms()) AS now_ms, l.flow_id, l.task_id, l.deadline_ms, l.attempt_timeout_ms,
    l.tokens, l.usd_micros, l.bytes, l.deliveries, l.failures, l.max_attempts, t.id, t.payload, t.traceparent, t.depth, t.fanout,
    t.tokens, t.usd_micros, a.reserved
FROM answer a
LEFT JOIN LATERAL (
    SELECT l.* FROM unnest(a.claimed) AS c(id)
    CROSS JOIN LATERAL (SELECT l.* FROM tidegate.lease l WHERE l.task_id = c.id AND l.session_id = $2::uuid LIMIT 1) l
) l ON true
LEFT JOIN LATERAL (
    SELECT t.id, t.payload, t.traceparent, t.depth, t.fanout, t.tokens, t.usd_micros FROM tidegate.task t WHERE t.id = l.task_id LIMIT 1
) t ON true
