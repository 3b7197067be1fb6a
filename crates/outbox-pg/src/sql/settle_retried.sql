-- Called by: Store::settle, when some of the events have failed before. $1 ids, $2 event ids, $3 and $4 those of
-- them that may have a retry row. Index: events_pkey, retries_pkey. Locks: rows of events, then of retries.
WITH gone AS (
  DELETE FROM {schema}.events
   WHERE id = ANY ($1::bigint[])
     AND (id, event_id) IN (SELECT * FROM unnest($1::bigint[], $2::uuid[]))
  RETURNING id
)
DELETE FROM {schema}.retries
 WHERE (SELECT count(*) FROM gone) >= 0
   AND id = ANY ($3::bigint[])
   AND (id, event_id) IN (SELECT * FROM unnest($3::bigint[], $4::uuid[]))
