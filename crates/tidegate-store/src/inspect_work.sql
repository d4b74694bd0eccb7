-- Who works, and what waits that nobody works on. Holds: nothing. Indexes: active_flow and flow_usage by their keys, flow
-- by its key; sessions are as few as the fleet.
-- $1 flows at most, $2 kinds that are named at most.
WITH live AS MATERIALIZED (
    SELECT s.kinds, s.slots
    FROM tidegate.heartbeat h JOIN tidegate.session s ON s.id = h.session_id
    WHERE h.expires_ms > tidegate.now_ms() AND NOT s.draining
), waiting AS MATERIALIZED (
    SELECT f.kind, sum(u.queued)::bigint AS tasks
    FROM (SELECT a.flow_id FROM tidegate.active_flow a ORDER BY a.flow_id LIMIT $1::int) a
    JOIN tidegate.flow f ON f.id = a.flow_id
    CROSS JOIN LATERAL (
        SELECT u.queued FROM tidegate.flow_usage u
        WHERE u.flow_id = a.flow_id ORDER BY u.flow_id DESC, u.generation DESC LIMIT 1
    ) u
    WHERE u.queued > 0
    GROUP BY f.kind
), unserved AS MATERIALIZED (
    SELECT w.kind, w.tasks FROM waiting w WHERE NOT EXISTS (SELECT FROM live l WHERE w.kind = ANY(l.kinds))
)
SELECT (SELECT count(*) FROM live) AS sessions, (SELECT coalesce(sum(slots), 0) FROM live)::bigint AS slots,
    (SELECT coalesce(sum(tasks), 0) FROM waiting)::bigint AS queued,
    (SELECT coalesce(sum(tasks), 0) FROM unserved)::bigint AS unserved,
    (SELECT count(*) FROM unserved) AS unserved_kinds,
    ARRAY(SELECT kind FROM unserved ORDER BY tasks DESC, kind LIMIT $2::int) AS kinds
