-- Behind facts.sql, where a submission has a key, a cancellation token or a parent: most batches have none, and to set
-- these parts up is a third of the statement's time.
-- $5, $6 idempotency keys and $7, $8 cancellation tokens with their tenants; $9, $10 parents with theirs.
UNION ALL
SELECT 3::smallint, i.tenant, i.key, i.task_id, i.body_sha256, NULL, NULL
FROM unnest($5::text[], $6::text[]) AS d(tenant, key) JOIN tidegate.idempotency i USING (tenant, key)
WHERE i.expires_ms > (SELECT now_ms FROM n)
UNION ALL
SELECT 4::smallint, c.tenant, c.token, NULL, NULL, NULL, NULL
FROM unnest($7::text[], $8::text[]) AS d(tenant, token) JOIN tidegate.cancelled_token c USING (tenant, token)
WHERE c.expires_ms > (SELECT now_ms FROM n)
UNION ALL
SELECT 5::smallint, NULL, NULL, t.id, NULL, NULL,
    ARRAY[t.deadline_ms, t.depth, t.fanout, (SELECT count(*) FROM (SELECT FROM tidegate.task c WHERE c.parent_id = t.id LIMIT t.fanout) c),
        (EXISTS (SELECT FROM tidegate.lease l WHERE l.task_id = t.id)
            AND NOT EXISTS (SELECT FROM tidegate.cancel_request c WHERE c.task_id = t.id))::int]::bigint[]
FROM unnest($9::uuid[], $10::text[]) AS d(id, tenant) JOIN tidegate.task t ON t.id = d.id AND t.tenant = d.tenant
WHERE t.status IS NULL
