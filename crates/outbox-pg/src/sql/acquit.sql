-- Called by: Store::write_back, behind the fence. $1 ids, $2 event ids. Takes back charged crashes: a row that tells of
-- nothing else goes, another is due now. Returns the ids whose event is still there.
-- Index: events_pkey, retries_pkey. Locks: rows of retries.
WITH acquitted AS (
  SELECT * FROM unnest($1::bigint[], $2::uuid[]) AS c (id, event_id)
), removed AS (
  DELETE FROM {schema}.retries
   WHERE id = ANY ($1::bigint[])
     AND (id, event_id) IN (SELECT id, event_id FROM acquitted)
     AND attempts = 0 AND NOT blocked
), kept AS (
  UPDATE {schema}.retries
     SET crashes = 0, next_attempt_at = clock_timestamp(), updated_at = clock_timestamp()
   WHERE id = ANY ($1::bigint[])
     AND (id, event_id) IN (SELECT id, event_id FROM acquitted)
     AND (attempts > 0 OR blocked)
)
SELECT id FROM {schema}.events
 WHERE id = ANY ($1::bigint[])
   AND (id, event_id) IN (SELECT id, event_id FROM acquitted)
