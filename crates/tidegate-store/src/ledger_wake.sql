-- Flows that come to have something waiting go into their lines. Left out where nothing comes in: behind
-- ledger_counters.sql, before ledger_tell.sql.
, woken AS (
    -- A flow that wakes stands at the floor of its class, which its tenant's virtual time is not below.
    INSERT INTO tidegate.active_flow (flow_id, class, kind, peer, tenant, lane, turn)
    SELECT f.id, f.class, f.kind, f.peer, f.tenant, f.lane, c.turn
    FROM (SELECT unnest($9::bigint[]) AS flow_id, unnest($10::bigint[]) AS queued) d
    CROSS JOIN LATERAL (SELECT f.* FROM tidegate.flow f WHERE f.id = d.flow_id LIMIT 1) f
    CROSS JOIN LATERAL (
        SELECT c.turn FROM tidegate.usage c
        WHERE c.scope = 1 AND c.key = (ARRAY['critical', 'standard', 'background'])[f.class + 1] ORDER BY c.scope DESC, c.key DESC, c.generation DESC LIMIT 1
    ) c
    WHERE d.queued > 0 AND (SELECT a.flow_id FROM tidegate.active_flow a WHERE a.flow_id = d.flow_id) IS NULL
    ON CONFLICT DO NOTHING
), risen AS (
    -- One that was left standing where it ran empty, and wakes, goes near the floor: sessions do not look for anything
    -- more than a second of worker time below it. Not all the way each time, so that one that runs empty again and again
    -- leaves few dead entries.
    UPDATE tidegate.active_flow a
    SET turn = (
        SELECT c.turn FROM tidegate.usage c
        WHERE c.scope = 1 AND c.key = (ARRAY['critical', 'standard', 'background'])[a.class + 1] ORDER BY c.scope DESC, c.key DESC, c.generation DESC LIMIT 1)
    WHERE a.ctid = ANY(ARRAY(
        SELECT a.at
        FROM (SELECT unnest($9::bigint[]) AS flow_id, unnest($10::bigint[]) AS queued) d
        CROSS JOIN LATERAL (
            SELECT a.ctid AS at, a.class, a.turn FROM tidegate.active_flow a WHERE a.flow_id = d.flow_id AND NOT a.parked AND a.lane <> 0 LIMIT 1
        ) a
        CROSS JOIN LATERAL (
            SELECT c.turn FROM tidegate.usage c
            WHERE c.scope = 1 AND c.key = (ARRAY['critical', 'standard', 'background'])[a.class + 1] ORDER BY c.scope DESC, c.key DESC, c.generation DESC LIMIT 1
        ) c
        WHERE d.queued > 0 AND a.turn < c.turn - 1000000
            AND (SELECT u.queued FROM tidegate.flow_usage u WHERE u.flow_id = d.flow_id ORDER BY u.flow_id DESC, u.generation DESC LIMIT 1) = 0
    ))
)
