-- The order between tenants, what peers are sent in a minute, and what retries may cost.

-- turn is, for a tenant's class (scope 4), its virtual time: microseconds of worker time divided by its weight; for a
-- class (scope 1), the floor from which whoever was idle starts. Scope 6 is a kind without a peer: its retry budget.
-- retry_spent is what is missing of a retry budget, in thousandths of a retry.
ALTER TABLE tidegate.usage DROP CONSTRAINT usage_scope_check;
ALTER TABLE tidegate.usage ADD CONSTRAINT usage_scope_check CHECK (scope BETWEEN 0 AND 6);
ALTER TABLE tidegate.usage
    ADD COLUMN turn bigint NOT NULL DEFAULT 0,
    ADD COLUMN retry_spent bigint NOT NULL DEFAULT 0 CHECK (retry_spent >= 0);
INSERT INTO tidegate.usage (scope, key) SELECT DISTINCT 6, kind FROM tidegate.flow WHERE peer = '';

-- Since when a task could have run: the later of its arrival and not_before. It goes with the task from place to place.
ALTER TABLE tidegate.ready ADD COLUMN enqueued_ms bigint NOT NULL DEFAULT 0;
ALTER TABLE tidegate.deferred ADD COLUMN enqueued_ms bigint NOT NULL DEFAULT 0;
ALTER TABLE tidegate.lease
    ADD COLUMN enqueued_ms bigint NOT NULL DEFAULT 0,
    -- What the tenant was charged for the run at its start, and in which class: corrected when it ends.
    ADD COLUMN charged_ms bigint NOT NULL DEFAULT 0,
    ADD COLUMN charged_in smallint NOT NULL DEFAULT 0 CHECK (charged_in BETWEEN 0 AND 2);
UPDATE tidegate.ready r SET enqueued_ms = greatest(t.enqueued_ms, t.not_before_ms) FROM tidegate.task t WHERE t.id = r.task_id;
UPDATE tidegate.deferred d SET enqueued_ms = greatest(t.enqueued_ms, t.not_before_ms) FROM tidegate.task t WHERE t.id = d.task_id;
UPDATE tidegate.lease l SET enqueued_ms = greatest(t.enqueued_ms, t.not_before_ms) FROM tidegate.task t WHERE t.id = l.task_id;
ALTER TABLE tidegate.ready ALTER COLUMN enqueued_ms DROP DEFAULT;
ALTER TABLE tidegate.deferred ALTER COLUMN enqueued_ms DROP DEFAULT;
ALTER TABLE tidegate.lease ALTER COLUMN enqueued_ms DROP DEFAULT;

-- The flows in which something may wait, in lines: flows of one class, kind and peer, which have room or not as one. In
-- a line they stand by a virtual time that was their tenant's or an earlier one (turn). A flow is parked while its tenant
-- may run no more: no claim meets it until something of that tenant ends, or the tenant's limits change.
DROP TABLE tidegate.active_flow;
CREATE TABLE tidegate.active_flow (
    flow_id bigint PRIMARY KEY,
    class smallint NOT NULL,
    kind text NOT NULL,
    peer text NOT NULL,
    tenant text NOT NULL,
    lane smallint NOT NULL,
    turn bigint NOT NULL,
    parked boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX active_flow_line ON tidegate.active_flow (class, kind, peer, turn, flow_id) WHERE NOT parked AND lane <> 0;
CREATE INDEX active_flow_admitted ON tidegate.active_flow (kind) WHERE lane = 0;
CREATE INDEX active_flow_parked ON tidegate.active_flow (tenant) WHERE parked;
INSERT INTO tidegate.active_flow (flow_id, class, kind, peer, tenant, lane, turn)
SELECT f.id, f.class, f.kind, f.peer, f.tenant, f.lane, 0 FROM tidegate.flow f
WHERE EXISTS (SELECT FROM tidegate.flow_usage u WHERE u.flow_id = f.id AND u.queued > 0);

-- Permits of calls that a running task makes to further peers, beside the one that its lease is. They go with the lease.
CREATE TABLE tidegate.permit (
    task_id uuid NOT NULL,
    fence integer NOT NULL CHECK (fence > 0),
    peer text NOT NULL,
    taken_ms bigint NOT NULL,
    PRIMARY KEY (task_id, fence, peer)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- Inputs that are held, by the fingerprint of kind and canonical input: for the tenant that they failed for, or for all
-- where tenant is empty.
CREATE TABLE tidegate.hold (
    fingerprint bytea NOT NULL CHECK (length(fingerprint) = 32),
    tenant text NOT NULL,
    kind text NOT NULL,
    reason text NOT NULL,
    task_id uuid NOT NULL,
    held_ms bigint NOT NULL,
    until_ms bigint NOT NULL,
    PRIMARY KEY (fingerprint, tenant)
);
