-- Called by: blocked::retry, after blocked_lock.sql. $1 ids, $2 event ids. As if they had never failed, but for the last
-- error, which is kept for people. Returns how many.
-- Index: retries_pkey, events_pkey. Locks: the rows, locked already.
WITH freed AS (
  UPDATE {schema}.retries AS r
     SET blocked = false, attempts = 0, crashes = 0, next_attempt_at = clock_timestamp(),
         updated_at = clock_timestamp()
   WHERE r.id = ANY ($1::bigint[])
     AND (r.id, r.event_id) IN (SELECT * FROM unnest($1::bigint[], $2::uuid[]))
     AND EXISTS (SELECT FROM {schema}.events AS e WHERE e.id = r.id AND e.event_id = r.event_id)
  RETURNING r.id
)
SELECT count(*) FROM freed
