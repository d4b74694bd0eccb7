-- QUEUED tasks that have waited for longer than the peer of their flow lets them: of the flows $1, with what each may
-- wait ($2, in milliseconds), the first $3 of each flow are looked at, and $4 found at most. A rank is never above the
-- instant since when its task waits, so what is overdue lies below the bound. What ran before waits on: nobody knows
-- since when. Index: ready's key, from the flow's lower bound up. Beside the rows: how many stand before each in its flow.
SELECT n.now_ms, n.revision, s.*
FROM (SELECT tidegate.now_ms() AS now_ms, (SELECT r.n FROM tidegate.policy_revision r WHERE r.id = 1) AS revision) n
CROSS JOIN unnest($1::bigint[], $2::bigint[]) AS d(flow_id, max_wait_ms)
CROSS JOIN LATERAL (
    SELECT u.low_rank, u.low_id FROM tidegate.flow_usage u
    WHERE u.flow_id = d.flow_id ORDER BY u.flow_id DESC, u.generation DESC LIMIT 1
) u
CROSS JOIN LATERAL (
    SELECT r.*, row_number() OVER (ORDER BY r.rank, r.task_id) - 1 AS before
    FROM (
        SELECT r.* FROM tidegate.ready r
        WHERE r.flow_id = d.flow_id AND (r.rank, r.task_id) >= (u.low_rank, u.low_id) AND r.rank <= n.now_ms - d.max_wait_ms
        ORDER BY r.flow_id, r.rank, r.task_id LIMIT $3
    ) r
) s
WHERE s.enqueued_ms <= n.now_ms - d.max_wait_ms AND s.deliveries = 0 AND s.session_id IS NULL
LIMIT $4
