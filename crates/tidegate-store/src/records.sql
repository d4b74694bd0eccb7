-- The records of claimed tasks that arrived at about the same time: one walk along the keys of the partitions between the
-- first id, $2, and the last, $3. Holds nothing.
SELECT t.id, t.payload, t.traceparent, t.depth, t.fanout, t.tokens, t.usd_micros
FROM tidegate.task t
WHERE t.id = ANY($1::uuid[]) AND t.id BETWEEN $2::uuid AND $3::uuid
