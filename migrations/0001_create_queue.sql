-- The queue: one record per task, small hot tables for where a living task is, exact counters, and an outbox.
--
-- A task that has not ended is in exactly one of ready (QUEUED, or ADMITTED in its own lane), deferred (DEFERRED) or
-- lease (RUNNING); task.status is set once, when it ends. The hot tables are insert-and-delete only. Every change of
-- state happens under the row lock of tidegate.cell, so counters are exact and the outbox is in commit order.
-- Instants are milliseconds since the epoch, by this database's clock.

-- It is there already where the table of applied migrations was made first.
CREATE SCHEMA IF NOT EXISTS tidegate;

CREATE FUNCTION tidegate.now_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

-- The mutex of the cell. Never updated, so locking it leaves no dead rows.
CREATE TABLE tidegate.cell (
    id smallint PRIMARY KEY CHECK (id = 1),
    number smallint NOT NULL CHECK (number BETWEEN 0 AND 255)
);
INSERT INTO tidegate.cell VALUES (1, 0);

-- Counters, one row for each cell (scope 0), class (1), tenant (2) and peer (3). A new generation replaces a row
-- after 250 versions, so that a look-up under an old snapshot walks no more than that.
CREATE TABLE tidegate.usage (
    scope smallint NOT NULL CHECK (scope BETWEEN 0 AND 3),
    key text NOT NULL,
    generation integer NOT NULL DEFAULT 1,
    version integer NOT NULL DEFAULT 0,
    queued bigint NOT NULL DEFAULT 0,
    running bigint NOT NULL DEFAULT 0,
    deferred bigint NOT NULL DEFAULT 0,
    tokens bigint NOT NULL DEFAULT 0,
    usd_micros bigint NOT NULL DEFAULT 0,
    bytes bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (scope, key, generation)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
INSERT INTO tidegate.usage (scope, key) VALUES (0, ''), (1, 'critical'), (1, 'standard'), (1, 'background');

-- Flows: waiting tasks of one class, tenant, kind, peer and lane.
CREATE TABLE tidegate.flow (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    class smallint NOT NULL CHECK (class BETWEEN 0 AND 2),
    tenant text NOT NULL,
    kind text NOT NULL,
    peer text NOT NULL DEFAULT '',
    lane smallint NOT NULL CHECK (lane BETWEEN 0 AND 3),
    UNIQUE (class, tenant, kind, peer, lane)
);

-- What moves in a flow: how many wait, and a lower bound below which no task of the flow waits.
CREATE TABLE tidegate.flow_usage (
    flow_id bigint NOT NULL,
    generation integer NOT NULL DEFAULT 1,
    version integer NOT NULL DEFAULT 0,
    queued bigint NOT NULL DEFAULT 0,
    low_rank bigint NOT NULL DEFAULT -9223372036854775808,
    low_id uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    PRIMARY KEY (flow_id, generation)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

-- The flows in which something may wait. Rows leave some time after their flow ran empty, not at once.
CREATE TABLE tidegate.active_flow (flow_id bigint PRIMARY KEY);

CREATE TABLE tidegate.ready (
    flow_id bigint NOT NULL,
    rank bigint NOT NULL,
    task_id uuid NOT NULL,
    deadline_ms bigint NOT NULL,
    min_useful_ms bigint NOT NULL,
    attempt_timeout_ms bigint,
    tokens bigint NOT NULL,
    usd_micros bigint NOT NULL,
    bytes integer NOT NULL,
    deliveries integer NOT NULL DEFAULT 0 CHECK (deliveries >= 0),
    failures smallint NOT NULL DEFAULT 0,
    losses smallint NOT NULL DEFAULT 0,
    max_attempts smallint NOT NULL,
    PRIMARY KEY (flow_id, rank, task_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000);
CREATE INDEX ready_deadline ON tidegate.ready (deadline_ms);

CREATE TABLE tidegate.deferred (
    task_id uuid PRIMARY KEY,
    flow_id bigint NOT NULL,
    rank bigint NOT NULL,
    eligible_ms bigint NOT NULL,
    reason text NOT NULL,
    deadline_ms bigint NOT NULL,
    min_useful_ms bigint NOT NULL,
    attempt_timeout_ms bigint,
    tokens bigint NOT NULL,
    usd_micros bigint NOT NULL,
    bytes integer NOT NULL,
    deliveries integer NOT NULL DEFAULT 0 CHECK (deliveries >= 0),
    failures smallint NOT NULL DEFAULT 0,
    losses smallint NOT NULL DEFAULT 0,
    max_attempts smallint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX deferred_eligible ON tidegate.deferred (eligible_ms);
CREATE INDEX deferred_deadline ON tidegate.deferred (deadline_ms);
CREATE INDEX deferred_flow ON tidegate.deferred (flow_id);

-- The right to run one attempt. It lives while its session's heartbeat is there and unexpired.
CREATE TABLE tidegate.lease (
    task_id uuid PRIMARY KEY,
    session_id uuid NOT NULL,
    flow_id bigint NOT NULL,
    rank bigint NOT NULL,
    started_ms bigint NOT NULL,
    deadline_ms bigint NOT NULL,
    min_useful_ms bigint NOT NULL,
    attempt_timeout_ms bigint,
    tokens bigint NOT NULL,
    usd_micros bigint NOT NULL,
    bytes integer NOT NULL,
    deliveries integer NOT NULL CHECK (deliveries > 0),
    failures smallint NOT NULL,
    losses smallint NOT NULL,
    max_attempts smallint NOT NULL,
    effects smallint NOT NULL CHECK (effects BETWEEN 0 AND 2)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- One boot of one worker, and the one row of it that changes.
CREATE TABLE tidegate.session (
    id uuid PRIMARY KEY,
    worker text NOT NULL,
    kinds text[] NOT NULL,
    slots integer NOT NULL CHECK (slots > 0),
    lease_ms bigint NOT NULL CHECK (lease_ms > 0),
    started_ms bigint NOT NULL,
    draining boolean NOT NULL DEFAULT false
);
CREATE TABLE tidegate.heartbeat (
    session_id uuid PRIMARY KEY,
    expires_ms bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- A cancel asked of a running task. Gone when the attempt settles.
CREATE TABLE tidegate.cancel_request (
    task_id uuid PRIMARY KEY,
    session_id uuid NOT NULL,
    reason text NOT NULL,
    requested_ms bigint NOT NULL,
    delivered_ms bigint
);
CREATE INDEX cancel_request_session ON tidegate.cancel_request (session_id);

-- Who wants the doorbell rung: an idle worker (role 0) or a reader of endings (role 1), by process.
CREATE UNLOGGED TABLE tidegate.waiting (
    process uuid NOT NULL,
    role smallint NOT NULL CHECK (role BETWEEN 0 AND 1),
    until_ms bigint NOT NULL,
    PRIMARY KEY (process, role)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE TABLE tidegate.task (
    id uuid NOT NULL,
    tenant text NOT NULL,
    kind text NOT NULL,
    peer text,
    class smallint NOT NULL CHECK (class BETWEEN 0 AND 2),
    priority smallint NOT NULL CHECK (priority BETWEEN 0 AND 100),
    flow_id bigint NOT NULL,
    rank bigint NOT NULL,
    enqueued_ms bigint NOT NULL,
    not_before_ms bigint,
    deadline_ms bigint NOT NULL,
    min_useful_ms bigint NOT NULL,
    attempt_timeout_ms bigint,
    max_attempts smallint NOT NULL CHECK (max_attempts > 0),
    depth integer NOT NULL,
    fanout integer NOT NULL,
    tokens bigint NOT NULL,
    usd_micros bigint NOT NULL,
    admission_wait_ms integer NOT NULL,
    parent_id uuid,
    cancellation_token text,
    workflow_id text,
    idempotency_key text,
    traceparent text,
    labels jsonb,
    priority_notes text[],
    redriven_from uuid,
    payload text NOT NULL,
    -- What happens to it. The counts are those of the attempts that have settled.
    attempt smallint NOT NULL DEFAULT 0,
    deliveries integer NOT NULL DEFAULT 0,
    failures smallint NOT NULL DEFAULT 0,
    losses smallint NOT NULL DEFAULT 0,
    started_ms bigint,
    finished_ms bigint,
    status text,
    reason text,
    detail text,
    note text,
    worker text,
    result text,
    error_type text,
    error_message text,
    error_retryable boolean,
    progress text,
    actual_tokens bigint,
    actual_usd_micros bigint,
    cancel_requested_ms bigint,
    cancel_delivered_ms bigint,
    cancel_acknowledged_ms bigint,
    PRIMARY KEY (id),
    CONSTRAINT task_state CHECK (
        CASE
            WHEN status IS NULL THEN finished_ms IS NULL AND reason IS NULL AND result IS NULL
            WHEN status = 'COMPLETED' THEN finished_ms IS NOT NULL AND reason IS NULL AND result IS NOT NULL AND deliveries > 0
            WHEN status IN ('FAILED', 'TIMED_OUT') THEN finished_ms IS NOT NULL AND reason IS NOT NULL AND result IS NULL AND deliveries > 0
            WHEN status IN ('CANCELLED', 'EXPIRED', 'SHED', 'REJECTED') THEN finished_ms IS NOT NULL AND reason IS NOT NULL AND result IS NULL
            ELSE false
        END)
) PARTITION BY RANGE (id);
CREATE INDEX task_tenant ON tidegate.task (tenant, id);
CREATE INDEX task_workflow ON tidegate.task (tenant, workflow_id, id) WHERE workflow_id IS NOT NULL;
CREATE INDEX task_token ON tidegate.task (tenant, cancellation_token) WHERE cancellation_token IS NOT NULL;
CREATE INDEX task_parent ON tidegate.task (parent_id) WHERE parent_id IS NOT NULL;

-- Ids with skewed clocks, and what outlives its partition.
CREATE TABLE tidegate.task_kept PARTITION OF tidegate.task DEFAULT WITH (fillfactor = 70);

-- A recorded outcome never changes, whoever asks.
CREATE FUNCTION tidegate.refuse_new_outcome() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN RAISE EXCEPTION 'task % has ended', OLD.id USING ERRCODE = 'TG001'; END $$;
CREATE TRIGGER task_final BEFORE UPDATE ON tidegate.task FOR EACH ROW
    WHEN (OLD.status IS NOT NULL AND (NEW.status IS DISTINCT FROM OLD.status OR NEW.reason IS DISTINCT FROM OLD.reason
        OR NEW.finished_ms IS DISTINCT FROM OLD.finished_ms OR NEW.result IS DISTINCT FROM OLD.result))
    EXECUTE FUNCTION tidegate.refuse_new_outcome();

-- Attempts that did not end their task, and those whose late result did not count. The attempt that ended a task is
-- told by the task itself.
CREATE TABLE tidegate.attempt (
    task_id uuid NOT NULL,
    fence integer NOT NULL CHECK (fence > 0),
    number smallint NOT NULL,
    worker text,
    started_ms bigint NOT NULL,
    ended_ms bigint NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('failed', 'timed_out', 'cancelled', 'snoozed', 'handed_back', 'lost', 'late')),
    reason text,
    error_type text,
    error_message text,
    error_retryable boolean,
    result text,
    PRIMARY KEY (task_id, fence)
) PARTITION BY RANGE (task_id);
CREATE TABLE tidegate.attempt_kept PARTITION OF tidegate.attempt DEFAULT;

-- Submissions that were refused at the door: short-lived, without their payload.
CREATE TABLE tidegate.refusal (
    id uuid NOT NULL,
    tenant text NOT NULL,
    kind text NOT NULL,
    peer text,
    class smallint NOT NULL CHECK (class BETWEEN 0 AND 2),
    priority smallint NOT NULL CHECK (priority BETWEEN 0 AND 100),
    status text NOT NULL CHECK (status IN ('REJECTED', 'SHED', 'EXPIRED', 'CANCELLED')),
    reason text NOT NULL,
    detail text,
    refused_ms bigint NOT NULL,
    deadline_ms bigint NOT NULL,
    not_before_ms bigint,
    max_attempts smallint NOT NULL,
    tokens bigint NOT NULL,
    usd_micros bigint NOT NULL,
    admission_wait_ms integer NOT NULL,
    parent_id uuid,
    cancellation_token text,
    workflow_id text,
    labels jsonb,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX refusal_tenant ON tidegate.refusal (tenant, id);
CREATE TABLE tidegate.refusal_kept PARTITION OF tidegate.refusal DEFAULT;

-- Keys that callers sent with their submissions. Not partitioned: a key is unique for its tenant for a day.
CREATE TABLE tidegate.idempotency (
    tenant text NOT NULL,
    key text NOT NULL,
    body_sha256 bytea NOT NULL CHECK (length(body_sha256) = 32),
    task_id uuid NOT NULL,
    expires_ms bigint NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX idempotency_expires ON tidegate.idempotency (expires_ms);

-- The outbox: one row for the tasks of a tenant and kind that made the same transition in one transaction. seq is
-- drawn under the cell's lock, so it is in commit order and a reader that has seen n has seen all below.
CREATE TABLE tidegate.event (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    at_ms bigint NOT NULL,
    tenant text NOT NULL,
    kind text NOT NULL,
    status text NOT NULL,
    reason text,
    task_ids uuid[] NOT NULL
) PARTITION BY RANGE (at_ms);
CREATE INDEX event_seq ON tidegate.event (seq);
CREATE TABLE tidegate.event_kept PARTITION OF tidegate.event DEFAULT;
ALTER TABLE tidegate.event ALTER COLUMN task_ids SET STORAGE EXTERNAL;

-- Where each living task is, for people with psql.
CREATE VIEW tidegate.task_place AS
    SELECT task_id, 'ready' AS place FROM tidegate.ready
    UNION ALL SELECT task_id, 'deferred' FROM tidegate.deferred
    UNION ALL SELECT task_id, 'lease' FROM tidegate.lease;
