-- Called by: Store::write_back, behind the fence. $1 ids, $2 event ids, $3 attempts, $4 crashes, $5 delays in seconds,
-- $6 kinds, $7 errors, $8 whether they are blocked. Returns the ids whose event is still there.
-- Index: events_pkey, retries_pkey. Locks: rows of retries.
INSERT INTO {schema}.retries AS r
       (id, event_id, bucket, aggregate_type, aggregate_id, attempts, crashes, next_attempt_at, last_error_kind,
        last_error, blocked)
SELECT e.id, e.event_id, e.bucket, e.aggregate_type, e.aggregate_id, c.attempts, c.crashes,
       clock_timestamp() + make_interval(secs => c.delay), c.kind, c.error, c.blocked
  FROM unnest($1::bigint[], $2::uuid[], $3::integer[], $4::integer[], $5::float8[], $6::text[], $7::text[],
              $8::boolean[])
       AS c (id, event_id, attempts, crashes, delay, kind, error, blocked)
  JOIN {schema}.events AS e ON e.id = c.id AND e.event_id = c.event_id
 WHERE e.id = ANY ($1::bigint[])
 ORDER BY e.id
ON CONFLICT (id) DO UPDATE
   SET event_id = excluded.event_id, bucket = excluded.bucket, aggregate_type = excluded.aggregate_type,
       aggregate_id = excluded.aggregate_id, attempts = excluded.attempts, crashes = excluded.crashes,
       next_attempt_at = excluded.next_attempt_at, last_error_kind = excluded.last_error_kind,
       last_error = excluded.last_error, blocked = excluded.blocked, updated_at = clock_timestamp()
RETURNING r.id
