-- What slots are reserved for, by peer: tasks, and tokens that they will draw. Holds: the cell's row. Indexes: all of
-- ready_reserved, which holds what was admitted and not claimed yet; flow by its key.
-- $1 peers, $2 reserved slots at most.
SELECT f.peer, count(*), sum(r.tokens)::bigint
FROM (
    SELECT r.flow_id, r.tokens FROM tidegate.ready r WHERE r.session_id IS NOT NULL
    ORDER BY r.session_id DESC, r.task_id DESC LIMIT $2::int
) r
JOIN tidegate.flow f ON f.id = r.flow_id
WHERE f.peer = ANY($1::text[])
GROUP BY f.peer
