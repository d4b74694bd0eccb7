-- Takes the leases of settled attempts away; a fence that is not the lease's own takes nothing. Holds: the cell's row;
-- index: lease's key. The rows tell what the settlement is decided on, in the same places as those of reap.sql.
-- The table is empty one moment and full the next, so the plan must not hang on what statistics say of it: rows are found
-- one by one behind a LIMIT, which nothing is moved across, and taken by their place.
WITH found AS MATERIALIZED (
    SELECT l.*, d.n
    FROM (SELECT unnest($1::uuid[]) AS task_id, unnest($2::int[]) AS fence, generate_subscripts($1::uuid[], 1)::bigint AS n) d
    CROSS JOIN LATERAL (
        SELECT l.ctid AS at, l.* FROM tidegate.lease l WHERE l.task_id = d.task_id AND l.deliveries = d.fence LIMIT 1
    ) l
), gone AS (
    DELETE FROM tidegate.lease WHERE ctid = ANY(ARRAY(SELECT at FROM found))
)
SELECT (SELECT tidegate.now_ms()) AS now_ms, l.task_id, l.flow_id, l.rank, l.started_ms, l.deadline_ms, l.min_useful_ms, l.attempt_timeout_ms,
    l.tokens, l.usd_micros, l.bytes, l.deliveries, l.failures, l.losses, l.max_attempts, l.effects, c.reason AS cancel_reason,
    c.delivered_ms, NULL::text AS worker, l.session_id, l.enqueued_ms, l.charged_ms, l.charged_in,
    coalesce((SELECT true FROM tidegate.permit p WHERE p.task_id = l.task_id AND p.fence = l.deliveries LIMIT 1), false) AS permits, l.n
FROM found l LEFT JOIN tidegate.cancel_request c ON c.task_id = l.task_id
