-- A recorded outcome still never changes, whoever asks; only the watch over it goes behind the update. A trigger that
-- goes before has Postgres lock each row first: one more change of its page and one more record of WAL for every task
-- that ends. One that goes behind is asked its WHEN alone, and refuses the whole statement as before.
DROP TRIGGER task_final ON tidegate.task;
CREATE TRIGGER task_final AFTER UPDATE ON tidegate.task FOR EACH ROW
    WHEN (OLD.status IS NOT NULL AND (NEW.status IS DISTINCT FROM OLD.status OR NEW.reason IS DISTINCT FROM OLD.reason
        OR NEW.finished_ms IS DISTINCT FROM OLD.finished_ms OR NEW.result IS DISTINCT FROM OLD.result))
    EXECUTE FUNCTION tidegate.refuse_new_outcome();
