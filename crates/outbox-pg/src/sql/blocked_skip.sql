-- Called by: blocked::skip, after blocked_lock.sql. $1 ids, $2 event ids. Moves them to the dead letters with what blocked
-- them; returns how many. Index: events_pkey, retries_pkey. Locks: rows of events; those of retries are locked already.
WITH skipped AS (
  SELECT r.id, r.event_id, r.attempts, coalesce(r.last_error_kind, 'blocked') AS kind,
         coalesce(r.last_error, 'blocked by hand') AS reason
    FROM {schema}.retries AS r
   WHERE r.id = ANY ($1::bigint[])
     AND (r.id, r.event_id) IN (SELECT * FROM unnest($1::bigint[], $2::uuid[]))
), moved AS (
  DELETE FROM {schema}.events
   WHERE id = ANY ($1::bigint[])
     AND (id, event_id) IN (SELECT id, event_id FROM skipped)
  RETURNING id, event_id, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type, headers,
            created_at
), dead AS (
  INSERT INTO {schema}.dead_letters
         (id, event_id, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type, headers,
          created_at, attempts, reason_kind, reason, died_at)
  SELECT m.id, m.event_id, m.aggregate_type, m.aggregate_id, m.event_type, m.payload, m.payload_bytes,
         m.content_type, m.headers, m.created_at, s.attempts, s.kind, s.reason, clock_timestamp()
    FROM moved AS m JOIN skipped AS s USING (id, event_id)
), forgotten AS (
  DELETE FROM {schema}.retries
   WHERE (SELECT count(*) FROM moved) >= 0
     AND id = ANY ($1::bigint[])
     AND (id, event_id) IN (SELECT id, event_id FROM skipped)
)
SELECT count(*) FROM moved
