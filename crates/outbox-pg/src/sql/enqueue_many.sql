-- Caller: Outbox::enqueue_many, once per chunk, in the business transaction. Eight arrays instead of eight parameters a
-- row: the protocol counts parameters in 16 bits. ORDER BY gives the ids in the order of the input. No RETURNING.
-- Locks: RowExclusiveLock on events, held to the end of the transaction as with every INSERT.
INSERT INTO {schema}.events
       (event_id, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type, headers)
SELECT n.event_id, n.aggregate_type, n.aggregate_id, n.event_type, n.payload::json, n.payload_bytes, n.content_type,
       n.headers::json
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::text[])
       WITH ORDINALITY
       AS n (event_id, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type, headers, place)
 ORDER BY n.place
