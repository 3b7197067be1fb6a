-- Called by: Store::write_back, behind the fence. $1 ids, $2 event ids, $3 attempts, $4 delays in seconds, $5 kinds,
-- $6 errors. Returns the ids whose event is still there.
-- Index: events_pkey, retries_pkey. Locks: rows of retries.
INSERT INTO {schema}.retries AS r
       (id, event_id, bucket, aggregate_type, aggregate_id, attempts, next_attempt_at, last_error_kind, last_error)
SELECT e.id, e.event_id, e.bucket, e.aggregate_type, e.aggregate_id, c.attempts,
       clock_timestamp() + make_interval(secs => c.delay), c.kind, c.error
  FROM unnest($1::bigint[], $2::uuid[], $3::integer[], $4::float8[], $5::text[], $6::text[])
       AS c (id, event_id, attempts, delay, kind, error)
  JOIN {schema}.events AS e ON e.id = c.id AND e.event_id = c.event_id
 WHERE e.id = ANY ($1::bigint[])
 ORDER BY e.id
ON CONFLICT (id) DO UPDATE
   SET event_id = excluded.event_id, bucket = excluded.bucket, aggregate_type = excluded.aggregate_type,
       aggregate_id = excluded.aggregate_id, attempts = excluded.attempts, next_attempt_at = excluded.next_attempt_at,
       last_error_kind = excluded.last_error_kind, last_error = excluded.last_error, updated_at = clock_timestamp()
RETURNING r.id
