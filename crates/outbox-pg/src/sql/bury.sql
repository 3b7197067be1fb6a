-- Called by: Store::write_back, behind the fence. $1 ids, $2 event ids, $3 attempts, $4 kinds, $5 reasons.
-- Moves events to the dead letters; returns the ids that were there.
-- Index: events_pkey, retries_pkey. Locks: rows of events, then of retries.
WITH given_up AS (
  SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::integer[], $4::text[], $5::text[])
                AS c (id, event_id, attempts, kind, reason)
), moved AS (
  DELETE FROM {schema}.events
   WHERE id = ANY ($1::bigint[])
     AND (id, event_id) IN (SELECT id, event_id FROM given_up)
  RETURNING id, event_id, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type, headers,
            created_at
), dead AS (
  INSERT INTO {schema}.dead_letters
         (id, event_id, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type, headers,
          created_at, attempts, reason_kind, reason, died_at)
  SELECT m.id, m.event_id, m.aggregate_type, m.aggregate_id, m.event_type, m.payload, m.payload_bytes,
         m.content_type, m.headers, m.created_at, c.attempts, c.kind, c.reason, clock_timestamp()
    FROM moved AS m JOIN given_up AS c USING (id, event_id)
), forgotten AS (
  DELETE FROM {schema}.retries
   WHERE (SELECT count(*) FROM moved) >= 0
     AND id = ANY ($1::bigint[])
     AND (id, event_id) IN (SELECT id, event_id FROM given_up)
)
SELECT id FROM moved
