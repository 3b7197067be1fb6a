-- Called by: Sampler. Who holds RowExclusiveLock on events, at most $1 of them, and how long ago, in microseconds, its
-- transaction began, as far as this role may know: of other roles' sessions only with pg_read_all_stats.
-- Index: none; reads the lock table and the sessions. Locks: none.
-- The relation is found by its row type: a name in a literal would have to be quoted twice.
SELECT l.virtualtransaction::text,
       greatest(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared)) * 1000000, 0)::bigint
  FROM pg_locks AS l
  LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
  LEFT JOIN pg_prepared_xacts AS p ON l.pid IS NULL AND split_part(l.virtualtransaction, '/', 2) = p.transaction::text
 WHERE l.granted AND l.locktype = 'relation' AND l.mode = 'RowExclusiveLock'
   AND l.relation = (SELECT t.typrelid FROM pg_type AS t WHERE t.oid = pg_typeof(NULL::{schema}.events))
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
 LIMIT $1
