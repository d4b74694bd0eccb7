-- What session $2 asks for with a turn, for whoever makes it. Takes no lock.
INSERT INTO tidegate.turn_request (id, session_id, alike, posted_ms, want, held, task_ids, fences, results, tokens, usd_micros)
VALUES ($1::uuid, $2::uuid, $3::bigint, tidegate.now_ms(), $4::bigint, $5::bigint, $6::uuid[], $7::bigint[],
    $8::text[], $9::bigint[], $10::bigint[])
