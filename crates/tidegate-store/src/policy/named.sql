-- What is in effect for the tenants ($1 is 2) or peers (3) that are asked for, and what they hold now: those that
-- somebody configured or that hold anything. Takes no lock. Index: usage from the newest generation down.
SELECT a.name, p.name IS NOT NULL AS configured, CASE WHEN p.seed_off THEN NULL ELSE p.seed::text END AS seed,
    p.patch::text AS patch, coalesce(u.queued, 0) AS queued, coalesce(u.running, 0) AS running,
    coalesce(u.deferred, 0) AS deferred, coalesce(u.tokens, 0) AS tokens, coalesce(u.usd_micros, 0) AS usd_micros,
    coalesce(u.bytes, 0) AS bytes
FROM asked a
LEFT JOIN tidegate.policy p ON p.scope = $1 AND p.name = a.name AND (p.patch IS NOT NULL OR NOT p.seed_off)
LEFT JOIN LATERAL (
    SELECT * FROM tidegate.usage u WHERE u.scope = $1 AND u.key = a.name
    ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
) u ON true
WHERE p.name IS NOT NULL OR u.queued + u.running + u.deferred > 0
ORDER BY a.name
