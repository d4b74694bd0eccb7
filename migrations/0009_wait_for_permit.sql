-- Calls of running tasks to further peers: who has a permit and who waits for one. And the flows of peers, by
-- themselves, for whoever looks what has waited for a peer for too long.

-- Scope 7 is a peer again: its queued are the calls that wait for it, which also count among the queued of scope 3, as
-- permits count among the running there. A claim leaves them their room without looking at who they are.
ALTER TABLE tidegate.usage DROP CONSTRAINT usage_scope_check;
ALTER TABLE tidegate.usage ADD CONSTRAINT usage_scope_check CHECK (scope BETWEEN 0 AND 7);

-- A row is a permit, or a call that waits for one while taken_ms is not set. It is owned by (task, fence) and goes with
-- that lease. The call's own number makes a release that is said twice take nothing of a later call. Nothing wrote the
-- table before.
DROP TABLE tidegate.permit;
CREATE TABLE tidegate.permit (
    task_id uuid NOT NULL,
    fence integer NOT NULL CHECK (fence > 0),
    call_id uuid NOT NULL,
    peer text NOT NULL CHECK (peer <> ''),
    asked_ms bigint NOT NULL,
    taken_ms bigint,
    PRIMARY KEY (task_id, fence, call_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX active_flow_of_peer ON tidegate.active_flow (flow_id) WHERE peer <> '' AND lane <> 0;
