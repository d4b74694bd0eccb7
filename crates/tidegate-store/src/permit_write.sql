, gone AS (
    -- Permits that are given back and waits that are given up, by whoever owns them. Appended to the ledger without its wake. Holds: the
    -- cell's row; index: permit's key. Rows are found one by one behind a LIMIT and taken by their place, so that the plan
    -- does not hang on what statistics say of a table that is mostly empty.
    DELETE FROM tidegate.permit WHERE ctid = ANY(ARRAY(
        SELECT p.at FROM unnest($33::uuid[], $34::int[], $35::uuid[]) AS d(task_id, fence, call_id)
        CROSS JOIN LATERAL (
            SELECT p.ctid AS at FROM tidegate.permit p
            WHERE p.task_id = d.task_id AND p.fence = d.fence AND p.call_id = d.call_id LIMIT 1
        ) p
    ))
    RETURNING 1
), took AS (
    UPDATE tidegate.permit SET taken_ms = $14::bigint WHERE ctid = ANY(ARRAY(
        SELECT p.at FROM unnest($36::uuid[], $37::int[], $38::uuid[]) AS d(task_id, fence, call_id)
        CROSS JOIN LATERAL (
            SELECT p.ctid AS at FROM tidegate.permit p
            WHERE p.task_id = d.task_id AND p.fence = d.fence AND p.call_id = d.call_id AND p.taken_ms IS NULL LIMIT 1
        ) p
    ))
    RETURNING 1
), put AS (
    INSERT INTO tidegate.permit (task_id, fence, call_id, peer, asked_ms, taken_ms)
    SELECT d.task_id, d.fence, d.call_id, d.peer, $14::bigint, CASE WHEN d.taken THEN $14::bigint END
    FROM unnest($39::uuid[], $40::int[], $41::uuid[], $42::text[], $43::boolean[]) AS d(task_id, fence, call_id, peer, taken)
    RETURNING 1
)
SELECT l.*, (SELECT count(*) FROM gone) AS gone, (SELECT count(*) FROM took) AS took, (SELECT count(*) FROM put) AS put
FROM ledger l
