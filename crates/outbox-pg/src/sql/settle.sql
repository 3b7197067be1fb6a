-- Called by: Store::settle. $1 ids, $2 their event ids.
-- Index: events_pkey. Locks: RowExclusiveLock, the rows themselves.
-- By both, since an id can come back after a restore. Right whoever owns the bucket now, so there is no fence.
DELETE FROM {schema}.events
 WHERE id = ANY ($1::bigint[])
   AND (id, event_id) IN (SELECT * FROM unnest($1::bigint[], $2::uuid[]))
