-- The first part of every statement that changes where tasks stand: moves the counters and tells the outbox.
-- Holds: the cell's row. Indexes: primary keys of usage and flow_usage, from the newest generation down; rows are found
-- behind a LIMIT and changed by their place, as in release.sql, whatever the planner thinks of the tables.
WITH usage_moved AS (
    UPDATE tidegate.usage u
    SET version = u.version + 1, queued = u.queued + d.queued, running = u.running + d.running, deferred = u.deferred + d.deferred,
        tokens = u.tokens + d.tokens, usd_micros = u.usd_micros + d.usd_micros, bytes = u.bytes + d.bytes,
        runs = u.runs + d.runs, run_ms = u.run_ms + d.run_ms, retry_spent = greatest(0, u.retry_spent + d.retry_spent),
        -- A tenant that was idle in a class starts from the floor of the class, if it is not beyond.
        turn = d.turn + CASE
            WHEN d.scope = 4 AND d.queued > 0 AND u.queued = 0 THEN greatest(u.turn, (
                SELECT c.turn FROM tidegate.usage c WHERE c.scope = 1 AND c.key = split_part(u.key, ':', 1) ORDER BY c.scope DESC, c.key DESC, c.generation DESC LIMIT 1))
            ELSE u.turn END,
        -- A bucket fills while nobody draws: what is drawn is added to now where it was full before.
        rate_full_ns = CASE WHEN d.rate_ns = 0 THEN u.rate_full_ns ELSE greatest(u.rate_full_ns, $14::bigint * 1000000) + d.rate_ns END,
        tokens_full_ns = CASE WHEN d.tokens_ns = 0 THEN u.tokens_full_ns ELSE greatest(u.tokens_full_ns, $14::bigint * 1000000) + d.tokens_ns END
    FROM (
        SELECT d.*, g.at
        FROM (
            SELECT unnest($1::smallint[]) AS scope, unnest($2::text[]) AS key, unnest($3::bigint[]) AS queued, unnest($4::bigint[]) AS running,
                unnest($5::bigint[]) AS deferred, unnest($6::bigint[]) AS tokens, unnest($7::bigint[]) AS usd_micros, unnest($8::bigint[]) AS bytes,
                unnest($23::bigint[]) AS runs, unnest($24::bigint[]) AS run_ms, unnest($25::bigint[]) AS rate_ns, unnest($26::bigint[]) AS tokens_ns,
                unnest($30::bigint[]) AS turn, unnest($31::bigint[]) AS retry_spent
        ) d
        CROSS JOIN LATERAL (
            SELECT g.ctid AS at FROM tidegate.usage g
            WHERE g.scope = d.scope AND g.key = d.key ORDER BY g.scope DESC, g.key DESC, g.generation DESC LIMIT 1
        ) g
    ) d
    WHERE u.ctid = d.at
    RETURNING u.version
), flow_moved AS (
    -- A lower bound is lowered by what comes in (raise false), and raised past what was taken in order (raise true); an
    -- upper bound is raised by what comes in, and lowered past what was displaced from there (sink).
    UPDATE tidegate.flow_usage u
    SET version = u.version + 1, queued = u.queued + d.queued,
        low_rank = CASE WHEN d.moves THEN d.low_rank ELSE u.low_rank END,
        low_id = CASE WHEN d.moves THEN d.low_id ELSE u.low_id END,
        high_rank = CASE WHEN d.moves_high THEN d.high_rank ELSE u.high_rank END,
        high_id = CASE WHEN d.moves_high THEN d.high_id ELSE u.high_id END
    FROM (
        SELECT c.at, d.queued, d.low_rank, d.low_id, d.high_rank, d.high_id,
            d.low_rank IS NOT NULL AND (d.raise OR (d.low_rank, d.low_id) < (c.low_rank, c.low_id)) AS moves,
            d.high_rank IS NOT NULL AND (d.sink OR (d.high_rank, d.high_id) > (c.high_rank, c.high_id)) AS moves_high
        FROM (
            SELECT unnest($9::bigint[]) AS flow_id, unnest($10::bigint[]) AS queued, unnest($11::bigint[]) AS low_rank, unnest($12::uuid[]) AS low_id,
                unnest($13::boolean[]) AS raise, unnest($27::bigint[]) AS high_rank, unnest($28::uuid[]) AS high_id, unnest($29::boolean[]) AS sink
        ) d
        CROSS JOIN LATERAL (
            SELECT c.ctid AS at, c.low_rank, c.low_id, c.high_rank, c.high_id FROM tidegate.flow_usage c
            WHERE c.flow_id = d.flow_id ORDER BY c.flow_id DESC, c.generation DESC LIMIT 1
        ) c
    ) d
    WHERE u.ctid = d.at
    RETURNING u.version
)
