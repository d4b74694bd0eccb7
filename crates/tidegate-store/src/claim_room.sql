-- What runs, for a claim of the kinds $1, and the lines in which something waits for it. Holds: the cell's row. Indexes:
-- usage from the newest generation down; active_flow_line from one line to the next, whatever waits in each; heartbeat and
-- session are as small as the fleet; ready_reserved from the newest on. $2 lines at most. What slots of session $3 are
-- reserved for is all that it holds beyond the $4 tasks that it knows of.
WITH RECURSIVE line AS (
    SELECT c.class, k.kind, f.peer
    FROM unnest(ARRAY[0, 1, 2]::smallint[]) AS c(class), unnest($1::text[]) AS k(kind)
    CROSS JOIN LATERAL (
        SELECT a.peer FROM tidegate.active_flow a
        WHERE a.class = c.class AND a.kind = k.kind AND NOT a.parked AND a.lane <> 0
        ORDER BY a.peer LIMIT 1
    ) f
    UNION ALL
    SELECT l.class, l.kind, n.peer
    FROM line l
    CROSS JOIN LATERAL (
        SELECT a.peer FROM tidegate.active_flow a
        WHERE a.class = l.class AND a.kind = l.kind AND a.peer > l.peer AND NOT a.parked AND a.lane <> 0
        ORDER BY a.peer LIMIT 1
    ) n
), lines AS MATERIALIZED (
    SELECT class, kind, peer FROM line LIMIT $2::int
), reserved AS MATERIALIZED (
    SELECT DISTINCT r.flow_id
    FROM (
        SELECT r.flow_id FROM tidegate.ready r WHERE r.session_id = $3::uuid ORDER BY r.session_id DESC, r.task_id DESC
        LIMIT least(1000, coalesce((
            SELECT greatest(0, u.running - $4::bigint) FROM tidegate.usage u
            WHERE u.scope = 5 AND u.key = ($3::uuid)::text ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1), 0))
    ) r
), peers AS MATERIALIZED (
    SELECT p.peer, u.running, u.rate_full_ns, u.tokens_full_ns, coalesce(c.queued, 0) AS calls
    FROM (
        SELECT peer FROM lines WHERE peer <> ''
        UNION SELECT f.peer FROM reserved r JOIN tidegate.flow f ON f.id = r.flow_id WHERE f.peer <> ''
    ) p
    CROSS JOIN LATERAL (
        SELECT u.running, u.rate_full_ns, u.tokens_full_ns FROM tidegate.usage u
        WHERE u.scope = 3 AND u.key = p.peer ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
    ) u
    LEFT JOIN LATERAL (
        SELECT u.queued FROM tidegate.usage u
        WHERE u.scope = 7 AND u.key = p.peer ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
    ) c ON true
), classes AS MATERIALIZED (
    SELECT c.n, u.running, u.turn
    FROM unnest(ARRAY['critical', 'standard', 'background']) WITH ORDINALITY AS c(key, n)
    CROSS JOIN LATERAL (
        SELECT u.running, u.turn FROM tidegate.usage u
        WHERE u.scope = 1 AND u.key = c.key ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
    ) u
)
SELECT (SELECT r.n FROM tidegate.policy_revision r WHERE r.id = 1) AS revision,
    (SELECT coalesce(sum(s.slots), 0)::bigint FROM tidegate.heartbeat h JOIN tidegate.session s ON s.id = h.session_id
        WHERE h.expires_ms > (SELECT tidegate.now_ms()) AND NOT s.draining) AS slots,
    tidegate.now_ms() AS now_ms, ARRAY(SELECT flow_id FROM reserved) AS reserved, c.running, c.floors, l.line_class, l.line_kind, l.line_peer,
    p.peers, p.peer_running, p.peer_rate, p.peer_tokens, p.peer_calls
-- Each set once, in order, rather than once for each column.
FROM (SELECT array_agg(running) AS running, array_agg(turn) AS floors FROM (SELECT * FROM classes ORDER BY n) c) c,
    (SELECT coalesce(array_agg(class), '{}') AS line_class, coalesce(array_agg(kind), '{}') AS line_kind, coalesce(array_agg(peer), '{}') AS line_peer
        FROM (SELECT * FROM lines ORDER BY class, kind, peer) l) l,
    (SELECT coalesce(array_agg(peer), '{}') AS peers, coalesce(array_agg(running), '{}') AS peer_running, coalesce(array_agg(rate_full_ns), '{}') AS peer_rate,
            coalesce(array_agg(tokens_full_ns), '{}') AS peer_tokens, coalesce(array_agg(calls), '{}') AS peer_calls
        FROM (SELECT * FROM peers ORDER BY peer) p) p
