-- Called by: Store::open_lane. Whether a reader of this role can see every event, and whether ids are handed out one by
-- one: a session that holds ids in a cache could use them long after others have passed them.
-- Index: catalogs only. Locks: none.
SELECT row_security_active(t.typrelid) AS hidden_rows,
       s.seqcache = 1 AND s.seqincrement = 1 AND NOT s.seqcycle AS one_by_one
  FROM pg_type AS t
  JOIN pg_class AS c ON c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = t.typrelid)
                    AND c.relname = 'events_id_seq'
  JOIN pg_sequence AS s ON s.seqrelid = c.oid
 WHERE t.oid = pg_typeof(NULL::{schema}.events)
