-- Called by: Store::write_back, behind the fence: retry rows whose event is no longer there. $1 ids, $2 event ids.
-- Index: retries_pkey. Locks: the rows themselves.
DELETE FROM {schema}.retries
 WHERE id = ANY ($1::bigint[])
   AND (id, event_id) IN (SELECT * FROM unnest($1::bigint[], $2::uuid[]))
