-- The tasks that a session's slots are reserved for, newest first: whoever knows how many there are finds them at once,
-- whatever was claimed before. The flows that they wait in may be as many as there are tenants, nearly all of them empty.
CREATE INDEX ready_reserved ON tidegate.ready (session_id, task_id) WHERE session_id IS NOT NULL;
DROP INDEX tidegate.active_flow_admitted;
