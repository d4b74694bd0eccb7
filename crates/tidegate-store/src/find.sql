-- Tasks by id ($1) of tenants ($2), and where they are. Holds: the cell's row. Indexes: primary keys.
SELECT d.n, tidegate.now_ms() AS now_ms, t.status, t.flow_id, t.rank, t.tokens, t.usd_micros, octet_length(t.payload) AS bytes, l.session_id, r.session_id AS reserved,
    coalesce(r.deliveries, w.deliveries) AS deliveries,
    CASE WHEN r.task_id IS NOT NULL THEN 'ready' WHEN w.task_id IS NOT NULL THEN 'deferred' END AS place
FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS d(id, tenant, n)
JOIN tidegate.task t ON t.id = d.id AND t.tenant = d.tenant
LEFT JOIN tidegate.ready r ON r.flow_id = t.flow_id AND r.rank = t.rank AND r.task_id = t.id AND t.status IS NULL
LEFT JOIN tidegate.deferred w ON w.task_id = t.id AND t.status IS NULL
LEFT JOIN tidegate.lease l ON l.task_id = t.id AND t.status IS NULL
ORDER BY d.n
