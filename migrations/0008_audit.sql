-- Who changed what: a row for each change of an operator, written in the transaction that made it. id is drawn under the
-- cell's lock, so it is in commit order. before is null where there was nothing, after where it is gone.
CREATE TABLE tidegate.admin_audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms bigint NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    target text,
    before jsonb,
    after jsonb
);
