-- Called by: Lane::sweep. $1 after, $2 through, $3 most rows. Ids and keys only.
-- Index: events_pkey. Locks: AccessShareLock.
SELECT id, hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)) AS key
  FROM {schema}.events
 WHERE id > $1 AND id <= $2
 ORDER BY id
 LIMIT $3
