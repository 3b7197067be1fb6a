-- Called by: Lane::read, in one message with read_begin.sql, before the snapshot of each forward read. A transaction of
-- its own, since its list must be older than the snapshot.
-- Index: none; reads the sequence, the lock table and nothing of `events`.
-- Locks: none but AccessShareLock on the sequence.
--
-- Ids up to `value` belong to one of the holders or are visible to every later snapshot: an INSERT holds
-- RowExclusiveLock on `events` from before it takes its id until after its commit is visible. The list must be made
-- after the value was read, all of it: hence a sub-select that OFFSET 0 keeps whole and a LATERAL that depends on it. One
-- walk through the lock table gives holders and xids. The relation is found by its row type: a name in a literal would
-- have to be quoted twice. A replica lists none of the primary's holders, so its note would prove nothing; a pooler may
-- lead a connection there that began at the primary.
BEGIN READ ONLY;
SELECT s.value, pg_is_in_recovery() AS is_replica,
       extract(epoch FROM pg_postmaster_start_time())::text AS started,
       pg_relation_filenode(s.tableoid)::bigint AS sequence_file,
       (SELECT coalesce(array_agg(p.pid), '{}') FROM pg_stat_get_activity(NULL) AS p WHERE p.datid IS NULL) AS processes,
       locks.holders, locks.xids
  FROM (SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS value, tableoid
          FROM {schema}.events_id_seq
        OFFSET 0) AS s
 CROSS JOIN LATERAL
       (SELECT coalesce(array_agg(l.virtualtransaction::text) FILTER (WHERE l.locktype = 'relation'), '{}') AS holders,
               coalesce(array_agg(l.virtualtransaction::text || ' ' || l.transactionid::text)
                        FILTER (WHERE l.locktype = 'transactionid'), '{}') AS xids
          FROM pg_lock_status() AS l
         WHERE s.value IS NOT NULL AND l.granted
           AND (l.locktype = 'relation' AND l.mode = 'RowExclusiveLock'
                AND l.relation = (SELECT t.typrelid FROM pg_type AS t WHERE t.oid = pg_typeof(NULL::{schema}.events))
                AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                OR l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock')) AS locks;
COMMIT
