-- Turns of sessions that wait for the cell's lock together, made by whoever of them gets it first. Neither table outlives
-- a crash of the database, and neither needs to: who gets no answer looks for leases of its own, as after a commit whose
-- end it did not see.

-- What a session asks for with a turn whose reports have all completed.
CREATE UNLOGGED TABLE tidegate.turn_request (
    id uuid PRIMARY KEY,
    session_id uuid NOT NULL,
    -- Turns may be made together where this is equal.
    alike bigint NOT NULL,
    posted_ms bigint NOT NULL,
    want bigint NOT NULL CHECK (want >= 0),
    -- What it holds beside those that it hands in.
    held bigint NOT NULL,
    task_ids uuid[] NOT NULL,
    fences bigint[] NOT NULL,
    results text[] NOT NULL,
    -- -1 where it is not known.
    tokens bigint[] NOT NULL,
    usd_micros bigint[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX turn_request_posted ON tidegate.turn_request (posted_ms);

-- What it got. The tasks that it is to run are those of the leases.
CREATE UNLOGGED TABLE tidegate.turn_answer (
    id uuid PRIMARY KEY,
    answered_ms bigint NOT NULL,
    settled text[] NOT NULL,
    claimed uuid[] NOT NULL,
    more boolean NOT NULL,
    -- Whether slots of it are reserved, which only its own turn can fill.
    reserved boolean NOT NULL,
    again_in_ms bigint
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX turn_answer_answered ON tidegate.turn_answer (answered_ms);

-- Whoever makes turns together takes the next number of a gate, at which those whose turns they are wait.
CREATE SEQUENCE tidegate.turn_gate;
