-- What the database says about itself. Reads settings and statistics only: no lock, no table of ours.
SELECT current_setting('server_version_num')::int AS version,
       pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool AS read_only,
       current_setting('fsync')::bool AS fsync,
       current_setting('full_page_writes')::bool AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
           AS max_connections,
       (SELECT count(*) FROM pg_stat_activity a WHERE a.backend_type = 'client backend') AS connections,
       COALESCE(has_schema_privilege(to_regnamespace('tidegate'), 'USAGE, CREATE'),
                has_database_privilege(current_database(), 'CREATE')) AS may_create,
       (SELECT (max(extract(epoch FROM clock_timestamp() - a.xact_start)) * 1000)::bigint FROM pg_stat_activity a
         WHERE a.backend_xmin IS NOT NULL AND a.pid <> pg_backend_pid()) AS oldest_snapshot_ms,
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
