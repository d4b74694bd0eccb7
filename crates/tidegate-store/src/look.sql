-- The first waiting tasks of each flow that may run, for a claim of $3 by session $1 that runs the kinds $2. Holds: the
-- cell's row. Indexes: active_flow_line from the first in a line on; flow_usage, usage and ready by their keys, ready from
-- the flow's lower bound up.
-- The lines with room are named by their class ($6), kind ($7), peer ($8) and the virtual time below which nothing
-- stands in them ($9); of each the first $5 flows are read, not those of the tenants $10, and suspects only where one may
-- be taken ($11). Of each flow so many tasks are read that together they are $4 % of what is wanted. Flows in which slots
-- of this session are reserved ($12) have no line: all are visited.
WITH near AS MATERIALIZED (
    SELECT w.*, coalesce(t.turn, 0) AS turn, coalesce(t.running, 0) AS class_running, coalesce(above.turn, 0) AS turn_above, coalesce(o.running, 0) AS tenant_running
    FROM (
        SELECT * FROM (
            SELECT 0::bigint AS line, a.flow_id, a.class, a.tenant, a.lane, a.turn AS stands, u.queued, u.low_rank, u.low_id
            FROM unnest($12::bigint[]) AS d(flow_id)
            JOIN tidegate.active_flow a ON a.flow_id = d.flow_id
            CROSS JOIN LATERAL (
                SELECT u.queued, u.low_rank, u.low_id FROM tidegate.flow_usage u
                WHERE u.flow_id = d.flow_id ORDER BY u.flow_id DESC, u.generation DESC LIMIT 1
            ) u
            WHERE a.lane = 0 AND a.kind = ANY($2::text[]) AND u.queued > 0 LIMIT 1000
        ) reserved
        UNION ALL
        SELECT l.n, f.*
        FROM unnest($6::smallint[], $7::text[], $8::text[], $9::bigint[]) WITH ORDINALITY AS l(class, kind, peer, low, n)
        CROSS JOIN LATERAL (
            SELECT a.flow_id, a.class, a.tenant, a.lane, a.turn, u.queued, u.low_rank, u.low_id
            FROM tidegate.active_flow a
            CROSS JOIN LATERAL (
                SELECT u.queued, u.low_rank, u.low_id FROM tidegate.flow_usage u
                WHERE u.flow_id = a.flow_id ORDER BY u.flow_id DESC, u.generation DESC LIMIT 1
            ) u
            WHERE a.class = l.class AND a.kind = l.kind AND a.peer = l.peer AND a.turn >= l.low AND NOT a.parked AND a.lane <> 0
                AND u.queued > 0 AND a.tenant <> ALL($10::text[]) AND (a.lane <> 3 OR $11::boolean)
            ORDER BY a.class, a.kind, a.peer, a.turn, a.flow_id LIMIT $5::int
        ) f
    ) w
    LEFT JOIN LATERAL (
        SELECT u.turn, u.running FROM tidegate.usage u
        WHERE u.scope = 4 AND u.key = (ARRAY['critical:', 'standard:', 'background:'])[w.class + 1] || w.tenant
        ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
    ) t ON true
    LEFT JOIN LATERAL (
        SELECT u.turn FROM tidegate.usage u
        WHERE w.class = 2 AND u.scope = 4 AND u.key = 'standard:' || w.tenant ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
    ) above ON true
    LEFT JOIN LATERAL (
        SELECT u.running FROM tidegate.usage u
        WHERE u.scope = 2 AND u.key = w.tenant ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
    ) o ON true
)
SELECT n.now_ms, n.alive, n.draining, w.flow_id, w.queued, w.rank, w.task_id, w.min_useful_ms, w.deadline_ms, w.attempt_timeout_ms,
    w.tokens, w.usd_micros, w.bytes, w.deliveries, w.failures, w.max_attempts, w.session_id, w.enqueued_ms,
    w.line, w.stands, w.turn, w.turn_above, w.class_running, w.tenant_running, w.losses
FROM (
    SELECT tidegate.now_ms() AS now_ms,
        EXISTS (SELECT FROM tidegate.heartbeat h WHERE h.session_id = $1::uuid AND h.expires_ms > (SELECT tidegate.now_ms())) AS alive,
        coalesce((SELECT s.draining FROM tidegate.session s WHERE s.id = $1::uuid), false) AS draining
) n
LEFT JOIN LATERAL (
    SELECT near.queued, near.line, near.stands, near.turn, near.turn_above, near.class_running, near.tenant_running, r.*
    FROM near
    CROSS JOIN LATERAL (
        SELECT r.* FROM tidegate.ready r
        WHERE r.flow_id = near.flow_id AND (r.rank, r.task_id) >= (near.low_rank, near.low_id)
        ORDER BY r.flow_id, r.rank, r.task_id
        LIMIT CASE WHEN near.lane = 0 THEN 1000
            ELSE (SELECT least($3::bigint, $4::bigint * $3::bigint / 100 / greatest(1, count(*)) + 8) FROM near) END
    ) r
) w ON true
ORDER BY w.flow_id, w.rank, w.task_id
