-- Called by: Sampler. The age, in transactions, of the oldest snapshot that keeps vacuum from removing rows of this
-- database: of sessions, replication slots and prepared transactions. 0 when there is none.
-- Index: none; reads the sessions. Locks: none.
SELECT coalesce(max(greatest(held.age, 0)), 0)::bigint
  FROM (SELECT age(backend_xmin) AS age FROM pg_stat_activity
         WHERE pid <> pg_backend_pid()
           AND (datid IS NULL OR datid = (SELECT oid FROM pg_database WHERE datname = current_database()))
        UNION ALL
        SELECT age(xmin) FROM pg_replication_slots
        UNION ALL
        SELECT age(transaction) FROM pg_prepared_xacts WHERE database = current_database()) AS held
