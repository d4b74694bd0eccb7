-- What operators decide at run time. A change is made under the row lock of tidegate.cell and counts up the revision,
-- so a decision sees all of it or nothing, and a process can tell at a glance whether what it remembers still holds.

CREATE TABLE tidegate.policy_revision (
    id smallint PRIMARY KEY CHECK (id = 1),
    n bigint NOT NULL
);
INSERT INTO tidegate.policy_revision VALUES (1, 1);

-- The limits of the cell (scope 0, no name), of tenants (2) and of peers (3), as documents: what is in effect is the
-- defaults, under the values of the configuration file, under the operator's changes.
CREATE TABLE tidegate.policy (
    scope smallint NOT NULL CHECK (scope IN (0, 2, 3)),
    name text NOT NULL CHECK ((scope = 0) = (name = '')),
    -- What the file said when an API process last started with another file.
    seed jsonb,
    -- An operator deleted what the file said; kept, so that the same file does not bring it back.
    seed_off boolean NOT NULL DEFAULT false,
    -- What operators changed.
    patch jsonb,
    changed_ms bigint NOT NULL,
    PRIMARY KEY (scope, name),
    CHECK (seed IS NOT NULL OR patch IS NOT NULL)
);

CREATE TABLE tidegate.pause (
    id uuid PRIMARY KEY,
    target text NOT NULL CHECK (target IN ('kind', 'class', 'tenant', 'peer')),
    value text NOT NULL,
    mode text NOT NULL CHECK (mode IN ('hold', 'refuse')),
    until_ms bigint,
    reason text,
    created_ms bigint NOT NULL
);
