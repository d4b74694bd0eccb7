-- Cancels that reach further than one transaction: groups of tasks, and the children of what was cancelled. A mark is
-- written together with the first of them and goes with the last, so that a keeper can carry on what a dead process left.

-- A group is walked from its newest task down: what a task started goes before the task itself.
DROP INDEX tidegate.task_token;
CREATE INDEX task_token ON tidegate.task (tenant, cancellation_token, id) WHERE cancellation_token IS NOT NULL;
DROP INDEX tidegate.task_parent;
CREATE INDEX task_parent ON tidegate.task (parent_id, id) WHERE parent_id IS NOT NULL;

-- A cancellation token (scope 0) or workflow (scope 1) whose tasks are being cancelled, the call that last asked for it,
-- and when whoever carries it out was last seen.
CREATE TABLE tidegate.cancel_group (
    tenant text NOT NULL,
    scope smallint NOT NULL CHECK (scope BETWEEN 0 AND 1),
    name text NOT NULL,
    call_id uuid NOT NULL,
    touched_ms bigint NOT NULL,
    PRIMARY KEY (tenant, scope, name)
);

-- A task that was cancelled, or asked to stop, while it had living children that had not been asked.
CREATE TABLE tidegate.cancel_parent (
    task_id uuid PRIMARY KEY,
    tenant text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
