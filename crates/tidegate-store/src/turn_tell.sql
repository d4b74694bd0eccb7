-- What became of the turns that were made together with another. Holds: the cell's row.
INSERT INTO tidegate.turn_answer (id, answered_ms, settled, claimed, more, reserved, again_in_ms)
SELECT d.id, tidegate.now_ms(), d.settled::text[], d.claimed::uuid[], $5::boolean OR d.reserved, d.reserved, $6::bigint
FROM (SELECT unnest($1::uuid[]) AS id, unnest($2::text[]) AS settled, unnest($3::text[]) AS claimed, unnest($4::boolean[]) AS reserved) d
