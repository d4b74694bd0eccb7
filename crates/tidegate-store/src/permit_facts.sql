-- What calls of session $1 are decided on: those of the tasks $2 with the fences $3 to the peers $4. Holds: the cell's
-- row. Indexes: keys of lease, flow and permit; usage from the newest generation down. Rows differ by "what"; see
-- permits.rs.
SELECT 0::smallint AS what, NULL::uuid AS id, NULL::uuid AS call_id, NULL::text AS peer,
    ARRAY[tidegate.now_ms(), (SELECT r.n FROM tidegate.policy_revision r WHERE r.id = 1),
        EXISTS (SELECT FROM tidegate.heartbeat h WHERE h.session_id = $1::uuid AND h.expires_ms > (SELECT tidegate.now_ms()))::int]::bigint[] AS n
UNION ALL
SELECT 1::smallint, l.task_id, NULL, f.peer, ARRAY[l.deliveries]::bigint[]
FROM unnest($2::uuid[], $3::int[]) AS d(task_id, fence)
CROSS JOIN LATERAL (
    SELECT l.task_id, l.deliveries, l.flow_id FROM tidegate.lease l
    WHERE l.task_id = d.task_id AND l.deliveries = d.fence AND l.session_id = $1::uuid LIMIT 1
) l
CROSS JOIN LATERAL (SELECT f.peer FROM tidegate.flow f WHERE f.id = l.flow_id LIMIT 1) f
UNION ALL
SELECT 2::smallint, p.task_id, p.call_id, p.peer, ARRAY[p.fence, (p.taken_ms IS NOT NULL)::int]::bigint[]
FROM unnest($2::uuid[], $3::int[]) AS d(task_id, fence)
CROSS JOIN LATERAL (SELECT p.* FROM tidegate.permit p WHERE p.task_id = d.task_id AND p.fence = d.fence LIMIT 16) p
UNION ALL
SELECT 3::smallint, NULL, NULL, w.peer,
    ARRAY[coalesce(u.running, 0), coalesce(u.queued, 0), coalesce(u.rate_full_ns, 0), coalesce(u.tokens_full_ns, 0), coalesce(c.queued, 0),
        (u.running IS NOT NULL AND c.queued IS NOT NULL)::int]::bigint[]
FROM unnest($4::text[]) AS w(peer)
LEFT JOIN LATERAL (
    SELECT u.running, u.queued, u.rate_full_ns, u.tokens_full_ns FROM tidegate.usage u
    WHERE u.scope = 3 AND u.key = w.peer ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
) u ON true
LEFT JOIN LATERAL (
    SELECT u.queued FROM tidegate.usage u
    WHERE u.scope = 7 AND u.key = w.peer ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
) c ON true
