-- Replaces counter rows that have had many versions by their next generation. Holds: the cell's row.
WITH old AS (
    DELETE FROM tidegate.usage u USING unnest($1::smallint[], $2::text[]) AS d(scope, key)
    WHERE u.scope = d.scope AND u.key = d.key AND u.version >= $3
    RETURNING u.*
)
INSERT INTO tidegate.usage (scope, key, generation, queued, running, deferred, tokens, usd_micros, bytes, runs, run_ms,
    rate_full_ns, tokens_full_ns, shedding, turn, retry_spent)
SELECT scope, key, generation + 1, queued, running, deferred, tokens, usd_micros, bytes, runs, run_ms,
    rate_full_ns, tokens_full_ns, shedding, turn, retry_spent
FROM old
