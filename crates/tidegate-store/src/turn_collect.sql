-- Takes the turns that wait and are like this one ($2), as many as have room beside it ($3 tasks), and this one's own
-- request ($1). Holds: the cell's row. Indexes: turn_request_posted from $4 ms ago on; keys; usage from the newest
-- generation down. Of a session that ends nothing is started; what slots of one are reserved for is left to its own turn.
WITH waiting AS MATERIALIZED (
    SELECT r.*, s.worker,
        CASE WHEN s.draining THEN 0 ELSE greatest(0, least(r.want, s.slots - u.running + cardinality(r.task_ids))) END AS may,
        u.running > r.held + cardinality(r.task_ids) AS reserved
    FROM (
        SELECT r.* FROM tidegate.turn_request r
        WHERE r.posted_ms > (SELECT tidegate.now_ms()) - $4::bigint AND r.alike = $2::bigint AND r.id <> $1::uuid
        ORDER BY r.posted_ms LIMIT 100
    ) r
    CROSS JOIN LATERAL (
        SELECT h.expires_ms FROM tidegate.heartbeat h WHERE h.session_id = r.session_id AND h.expires_ms > (SELECT tidegate.now_ms()) LIMIT 1
    ) h
    CROSS JOIN LATERAL (SELECT s.worker, s.slots, s.draining FROM tidegate.session s WHERE s.id = r.session_id LIMIT 1) s
    CROSS JOIN LATERAL (
        SELECT u.running FROM tidegate.usage u
        WHERE u.scope = 5 AND u.key = (r.session_id)::text ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
    ) u
), taken AS MATERIALIZED (
    SELECT * FROM (
        SELECT w.*, sum(greatest(cardinality(w.task_ids), w.may)) OVER (ORDER BY w.posted_ms, w.id) AS upto FROM waiting w
    ) w
    WHERE w.upto <= $3::bigint
), gone AS (
    -- One that is taken back at this moment is waited for, and not served if it is gone.
    DELETE FROM tidegate.turn_request WHERE id = ANY(ARRAY(SELECT id FROM taken) || $1::uuid)
    RETURNING id
)
SELECT t.id, t.session_id, t.worker, t.may, t.reserved, t.task_ids, t.fences, t.results, t.tokens, t.usd_micros
FROM gone g JOIN taken t ON t.id = g.id
