-- What runs, for a claim. Holds: the cell's row. Indexes: usage from the newest generation down; heartbeat and session
-- are as small as the fleet.
-- $1 tenants and $2 peers that have limits of their own. Arrays are in their order; of a tenant: all, then each class.
SELECT (SELECT r.n FROM tidegate.policy_revision r WHERE r.id = 1) AS revision,
    (SELECT coalesce(sum(s.slots), 0)::bigint FROM tidegate.heartbeat h JOIN tidegate.session s ON s.id = h.session_id
        WHERE h.expires_ms > (SELECT tidegate.now_ms()) AND NOT s.draining) AS slots,
    ARRAY(
        SELECT coalesce((
            SELECT u.running FROM tidegate.usage u
            WHERE u.scope = k.scope AND u.key = k.key ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
        ), 0)
        FROM (
            SELECT 1::smallint AS scope, c AS key, 0 AS a, n FROM unnest(ARRAY['critical', 'standard', 'background']) WITH ORDINALITY AS c(c, n)
            UNION ALL SELECT 2::smallint, t, 1, n * 4 FROM unnest($1::text[]) WITH ORDINALITY AS t(t, n)
            UNION ALL SELECT 4::smallint, 'critical:' || t, 1, n * 4 + 1 FROM unnest($1::text[]) WITH ORDINALITY AS t(t, n)
            UNION ALL SELECT 4::smallint, 'standard:' || t, 1, n * 4 + 2 FROM unnest($1::text[]) WITH ORDINALITY AS t(t, n)
            UNION ALL SELECT 4::smallint, 'background:' || t, 1, n * 4 + 3 FROM unnest($1::text[]) WITH ORDINALITY AS t(t, n)
            UNION ALL SELECT 3::smallint, p, 2, n FROM unnest($2::text[]) WITH ORDINALITY AS p(p, n)
        ) k
        ORDER BY k.a, k.n
    ) AS running,
    tidegate.now_ms() AS now_ms
