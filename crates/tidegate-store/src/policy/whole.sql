-- The whole policy in one row. Needs no lock: one statement sees one snapshot, and a change is one transaction.
SELECT r.n,
    (SELECT coalesce(json_agg(json_build_object('scope', p.scope, 'name', p.name,
            'seed', CASE WHEN p.seed_off THEN NULL ELSE p.seed END, 'patch', p.patch)), '[]')::text
        FROM tidegate.policy p WHERE p.patch IS NOT NULL OR NOT p.seed_off) AS documents,
    (SELECT coalesce(json_agg(json_build_object('fingerprint', encode(h.fingerprint, 'hex'), 'tenant', h.tenant, 'kind', h.kind, 'until_ms', h.until_ms)), '[]')::text
        FROM (SELECT h.* FROM tidegate.hold h WHERE h.until_ms > (SELECT tidegate.now_ms()) ORDER BY h.held_ms DESC LIMIT 10000) h) AS holds,
    (SELECT coalesce(json_agg(row_to_json(p) ORDER BY p.created_ms, p.id), '[]')::text
        FROM tidegate.pause p WHERE p.until_ms IS NULL OR p.until_ms > (SELECT tidegate.now_ms())) AS pauses
FROM tidegate.policy_revision r WHERE r.id = 1
