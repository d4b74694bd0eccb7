-- Flows that were passed over for their tenants' sake, and may have room again. Left out where nothing ends: behind
-- ledger_wake.sql or what comes before it, before ledger_tell.sql.
, unparked AS (
    -- Something of these tenants ended: they may have room again, from the floor.
    UPDATE tidegate.active_flow a
    SET parked = false, turn = greatest(a.turn, (
        SELECT c.turn FROM tidegate.usage c
        WHERE c.scope = 1 AND c.key = (ARRAY['critical', 'standard', 'background'])[a.class + 1] ORDER BY c.scope DESC, c.key DESC, c.generation DESC LIMIT 1))
    WHERE a.parked AND a.tenant = ANY($32::text[])
    RETURNING 1
)
