-- The end of every ledger: behind ledger_counters.sql, with or without ledger_wake.sql and ledger_free.sql.
, told AS (
    INSERT INTO tidegate.event (at_ms, tenant, kind, status, reason, task_ids)
    SELECT $14::bigint, e.tenant, e.kind, e.status, e.reason, ($21::uuid[])[e.first:e.last]
    FROM (
        SELECT unnest($15::text[]) AS tenant, unnest($16::text[]) AS kind, unnest($17::text[]) AS status, unnest($18::text[]) AS reason,
            unnest($19::int[]) AS first, unnest($20::int[]) AS last
    ) e
), ledger AS (
    SELECT u.usages, u.usage_version, f.flows, f.flow_version, (SELECT count(*) FROM unparked) AS unparked,
        EXISTS (SELECT FROM tidegate.waiting w WHERE w.role = 0 AND w.process <> $22::uuid AND w.until_ms > $14::bigint) AS worker_waits,
        EXISTS (SELECT FROM tidegate.waiting w WHERE w.role = 1 AND w.process <> $22::uuid AND w.until_ms > $14::bigint) AS reader_waits
    FROM (SELECT count(*) AS usages, coalesce(max(version), 0) AS usage_version FROM usage_moved) u,
        (SELECT count(*) AS flows, coalesce(max(version), 0) AS flow_version FROM flow_moved) f
)
