-- The end of every ledger: behind ledger_counters.sql, with or without ledger_wake.sql.
, unparked AS (
    -- Something of these tenants ended: they may have room again, from the floor.
    UPDATE tidegate.active_flow a
    SET parked = false, turn = greatest(a.turn, (
        SELECT c.turn FROM tidegate.usage c
        WHERE c.scope = 1 AND c.key = (ARRAY['critical', 'standard', 'background'])[a.class + 1] ORDER BY c.scope DESC, c.key DESC, c.generation DESC LIMIT 1))
    WHERE a.parked AND a.tenant = ANY($32::text[])
    RETURNING 1
), told AS (
    INSERT INTO tidegate.event (at_ms, tenant, kind, status, reason, task_ids)
    SELECT $14::bigint, e.tenant, e.kind, e.status, e.reason, ($21::uuid[])[e.first:e.last]
    FROM (
        SELECT unnest($15::text[]) AS tenant, unnest($16::text[]) AS kind, unnest($17::text[]) AS status, unnest($18::text[]) AS reason,
            unnest($19::int[]) AS first, unnest($20::int[]) AS last
    ) e
), ledger AS (
    SELECT (SELECT count(*) FROM usage_moved) AS usages, (SELECT count(*) FROM unparked) AS unparked, (SELECT coalesce(max(version), 0) FROM usage_moved) AS usage_version,
        (SELECT count(*) FROM flow_moved) AS flows, (SELECT coalesce(max(version), 0) FROM flow_moved) AS flow_version,
        EXISTS (SELECT FROM tidegate.waiting w WHERE w.role = 0 AND w.process <> $22::uuid AND w.until_ms > $14::bigint) AS worker_waits,
        EXISTS (SELECT FROM tidegate.waiting w WHERE w.role = 1 AND w.process <> $22::uuid AND w.until_ms > $14::bigint) AS reader_waits
)
