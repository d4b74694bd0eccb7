-- What the door decides on: counters by tenant and class and by session, token buckets, the pace of service, whether a
-- class is being shed, the upper end of each flow, and reserved slots.

-- Scope 4 is a tenant's class, with the key class:tenant; scope 5 is a session, whose running tasks are those that it
-- runs or that a slot of it is reserved for.
ALTER TABLE tidegate.usage DROP CONSTRAINT usage_scope_check;
ALTER TABLE tidegate.usage ADD CONSTRAINT usage_scope_check CHECK (scope BETWEEN 0 AND 5);
ALTER TABLE tidegate.usage
    -- Runs that ended, and how long they took together: read twice, they tell the pace.
    ADD COLUMN runs bigint NOT NULL DEFAULT 0,
    ADD COLUMN run_ms bigint NOT NULL DEFAULT 0,
    -- When the tenant's buckets are full again, in nanoseconds since the epoch.
    ADD COLUMN rate_full_ns bigint NOT NULL DEFAULT 0,
    ADD COLUMN tokens_full_ns bigint NOT NULL DEFAULT 0,
    -- Whether the class is being shed.
    ADD COLUMN shedding boolean NOT NULL DEFAULT false;

INSERT INTO tidegate.usage (scope, key, queued, running, deferred, tokens, usd_micros, bytes)
SELECT 4, (ARRAY['critical', 'standard', 'background'])[f.class + 1] || ':' || f.tenant,
    sum(h.queued), sum(h.running), sum(h.deferred), sum(h.tokens), sum(h.usd_micros), sum(h.bytes)
FROM (
    SELECT flow_id, 1 AS queued, 0 AS running, 0 AS deferred, tokens, usd_micros, bytes::bigint AS bytes FROM tidegate.ready
    UNION ALL SELECT flow_id, 0, 1, 0, tokens, usd_micros, bytes FROM tidegate.lease
    UNION ALL SELECT flow_id, 0, 0, 1, 0, 0, bytes FROM tidegate.deferred
) h
JOIN tidegate.flow f ON f.id = h.flow_id
GROUP BY 2;
-- Every class of every tenant that was ever seen has a row, as the tenant has.
INSERT INTO tidegate.usage (scope, key)
SELECT 4, c.class || ':' || u.key
FROM (SELECT DISTINCT key FROM tidegate.usage WHERE scope = 2) u, (VALUES ('critical'), ('standard'), ('background')) c(class)
ON CONFLICT DO NOTHING;
INSERT INTO tidegate.usage (scope, key, running)
SELECT 5, h.session_id::text, count(l.task_id)
FROM (SELECT session_id FROM tidegate.heartbeat UNION SELECT session_id FROM tidegate.lease) h
LEFT JOIN tidegate.lease l USING (session_id)
GROUP BY h.session_id;

-- An upper bound above which no task of the flow waits, so that displacement need not walk what it removed.
ALTER TABLE tidegate.flow_usage
    ADD COLUMN high_rank bigint NOT NULL DEFAULT 9223372036854775807,
    ADD COLUMN high_id uuid NOT NULL DEFAULT 'ffffffff-ffff-ffff-ffff-ffffffffffff';

-- The session whose slot is reserved for an ADMITTED task, and since when.
ALTER TABLE tidegate.ready
    ADD COLUMN session_id uuid,
    ADD COLUMN reserved_ms bigint,
    ADD CONSTRAINT ready_reserved CHECK ((session_id IS NULL) = (reserved_ms IS NULL));
-- The few flows in which slots are reserved, for the keeper that takes back what nobody claimed.
CREATE INDEX flow_admitted ON tidegate.flow (id) WHERE lane = 0;
