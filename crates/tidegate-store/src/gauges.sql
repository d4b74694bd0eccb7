-- Numbers for metrics and health. Each is a look at one end of an index, or at a table as small as the fleet.
WITH latest AS (
    SELECT DISTINCT ON (scope, key) scope, key, queued, running, deferred, bytes FROM tidegate.usage WHERE scope < 2
    ORDER BY scope, key, generation DESC
)
SELECT
    (SELECT queued FROM latest WHERE key = 'critical') AS critical_queued, (SELECT running FROM latest WHERE key = 'critical') AS critical_running,
    (SELECT deferred FROM latest WHERE key = 'critical') AS critical_deferred,
    (SELECT queued FROM latest WHERE key = 'standard') AS standard_queued, (SELECT running FROM latest WHERE key = 'standard') AS standard_running,
    (SELECT deferred FROM latest WHERE key = 'standard') AS standard_deferred,
    (SELECT queued FROM latest WHERE key = 'background') AS background_queued, (SELECT running FROM latest WHERE key = 'background') AS background_running,
    (SELECT deferred FROM latest WHERE key = 'background') AS background_deferred,
    (SELECT bytes FROM latest WHERE scope = 0) AS bytes,
    (
        -- The oldest of a flow is near its head: ranks differ from arrival by at most 100 ageing steps.
        SELECT max(n.now_ms - t.enqueued_ms)
        FROM (SELECT tidegate.now_ms() AS now_ms) n,
            (SELECT flow_id FROM tidegate.active_flow LIMIT 256) a
            CROSS JOIN LATERAL (
                SELECT low_rank, low_id FROM tidegate.flow_usage u WHERE u.flow_id = a.flow_id ORDER BY u.generation DESC LIMIT 1
            ) u
            CROSS JOIN LATERAL (
                SELECT r.task_id FROM tidegate.ready r
                WHERE r.flow_id = a.flow_id AND (r.rank, r.task_id) >= (u.low_rank, u.low_id) ORDER BY r.rank, r.task_id LIMIT 1
            ) r
            JOIN tidegate.task t ON t.id = r.task_id
    ) AS oldest_queued_ms,
    (SELECT greatest(0, tidegate.now_ms() - d.eligible_ms) FROM tidegate.deferred d WHERE d.eligible_ms <= (SELECT tidegate.now_ms())
        ORDER BY d.eligible_ms LIMIT 1) AS oldest_due_ms,
    (SELECT tidegate.now_ms() - min(l.started_ms) FROM tidegate.lease l) AS oldest_running_ms,
    (SELECT count(*) FROM tidegate.heartbeat h WHERE h.expires_ms > (SELECT tidegate.now_ms())) AS sessions,
    (SELECT coalesce(sum(s.slots), 0) FROM tidegate.session s JOIN tidegate.heartbeat h ON h.session_id = s.id
        WHERE NOT s.draining AND h.expires_ms > (SELECT tidegate.now_ms())) AS slots,
    (SELECT count(*) FROM tidegate.lease) AS leases
