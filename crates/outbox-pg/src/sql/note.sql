-- Called by: Lane::read, before the snapshot of each forward read.
-- Index: none; reads the sequence, the lock table and nothing of `events`.
-- Locks: none but AccessShareLock on the sequence.
--
-- Ids up to `value` belong to one of the holders or are visible to every later snapshot: an INSERT holds
-- RowExclusiveLock on `events` from before it takes its id until after its commit is visible. The list must be made
-- after the value was read, hence the sub-selects that depend on it. The relation is found by its row type: a name in a
-- literal would have to be quoted twice.
SELECT CASE WHEN s.is_called THEN s.last_value ELSE s.last_value - 1 END AS value,
       extract(epoch FROM pg_postmaster_start_time())::text AS started,
       pg_relation_filenode(s.tableoid)::bigint AS sequence_file,
       (SELECT coalesce(array_agg(p.pid), '{}') FROM pg_stat_get_activity(NULL) AS p WHERE p.datid IS NULL) AS processes,
       (SELECT coalesce(array_agg(l.virtualtransaction::text), '{}')
          FROM pg_locks AS l
         WHERE s.last_value IS NOT NULL
           AND l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
           AND l.relation = (SELECT t.typrelid FROM pg_type AS t WHERE t.oid = pg_typeof(NULL::{schema}.events))
           AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
       ) AS holders,
       (SELECT coalesce(array_agg(x.virtualtransaction::text || ' ' || x.transactionid::text), '{}')
          FROM pg_locks AS x
         WHERE s.last_value IS NOT NULL
           AND x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted
       ) AS xids
  FROM {schema}.events_id_seq AS s
