-- Records that a group is to be cancelled: of a tenant ($1) the token (scope 0) or workflow ($2 scope, $3 name), by a
-- call ($4). A token is refused at the door from now on, for $5 milliseconds. Holds: the cell's row.
WITH n AS MATERIALIZED (SELECT tidegate.now_ms() AS now_ms), refused AS (
    INSERT INTO tidegate.cancelled_token (tenant, token, cancelled_ms, expires_ms)
    SELECT $1::text, $3::text, n.now_ms, n.now_ms + $5::bigint FROM n WHERE $2::smallint = 0
    ON CONFLICT (tenant, token) DO UPDATE SET cancelled_ms = excluded.cancelled_ms, expires_ms = excluded.expires_ms
)
INSERT INTO tidegate.cancel_group (tenant, scope, name, call_id, touched_ms)
SELECT $1::text, $2::smallint, $3::text, $4::uuid, n.now_ms FROM n
ON CONFLICT (tenant, scope, name) DO UPDATE SET call_id = excluded.call_id, touched_ms = excluded.touched_ms
