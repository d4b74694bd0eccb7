-- Replaces counter rows that have had many versions by their next generation. Of each only the newest is looked at: under
-- an old snapshot those before it are dead and still there. Holds: the cell's row. Index: usage's key, downwards.
WITH newest AS MATERIALIZED (
    SELECT u.at, u.version
    FROM (SELECT unnest($1::smallint[]) AS scope, unnest($2::text[]) AS key) d
    CROSS JOIN LATERAL (
        SELECT u.ctid AS at, u.version FROM tidegate.usage u
        WHERE u.scope = d.scope AND u.key = d.key ORDER BY u.scope DESC, u.key DESC, u.generation DESC LIMIT 1
    ) u
), old AS (
    DELETE FROM tidegate.usage WHERE ctid = ANY(ARRAY(SELECT at FROM newest WHERE version >= $3))
    RETURNING *
)
INSERT INTO tidegate.usage (scope, key, generation, queued, running, deferred, tokens, usd_micros, bytes, runs, run_ms,
    rate_full_ns, tokens_full_ns, shedding, turn, retry_spent)
SELECT scope, key, generation + 1, queued, running, deferred, tokens, usd_micros, bytes, runs, run_ms,
    rate_full_ns, tokens_full_ns, shedding, turn, retry_spent
FROM old
