-- The kinds for which the door may reserve slots of a session: not those of which the worker runs fewer than it has slots,
-- since the door does not count what a session runs of a kind. All that it runs, for a session of a program that says
-- nothing of it.
ALTER TABLE tidegate.session ADD COLUMN reservable text[];
