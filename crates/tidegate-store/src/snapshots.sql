-- Whoever keeps rows of this database that died from being cleaned up, the oldest first. Reads statistics alone: no lock, no table of ours.
-- What a user who is no superuser may not see of another's session is since when; which transaction it goes back to is for all to see.
-- Left out: our own sessions ($1 is their name), which are bounded; vacuum and autovacuum, which hold nobody up; other databases, which do not either.
-- $2 is the most that are told.
SELECT h.who, h.xid::text AS xid, h.age_ms
FROM (
    SELECT format('session %s of %s, application %s', a.pid, a.usename, a.application_name) AS who,
        CASE WHEN coalesce(age(a.backend_xid), 0) > coalesce(age(a.backend_xmin), 0) THEN a.backend_xid ELSE a.backend_xmin END AS xid,
        (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000)::bigint AS age_ms
    FROM pg_stat_activity a
    WHERE (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL)
        AND a.usesysid IS NOT NULL AND a.pid <> pg_backend_pid() AND a.application_name IS DISTINCT FROM $1
        -- A standby's feedback comes by a session without a database, and counts for all.
        AND (a.datid IS NULL OR a.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
        AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
    UNION ALL
    SELECT format('prepared transaction %s of %s', p.gid, p.owner), p.transaction,
        (extract(epoch FROM clock_timestamp() - p.prepared) * 1000)::bigint
    FROM pg_prepared_xacts p WHERE p.database = current_database()
    UNION ALL
    SELECT format('replication slot %s', s.slot_name), s.xmin, NULL
    FROM pg_replication_slots s WHERE s.xmin IS NOT NULL
) h
ORDER BY age(h.xid) DESC, h.age_ms DESC NULLS LAST LIMIT $2
