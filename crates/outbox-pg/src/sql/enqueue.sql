-- Caller: Outbox::enqueue, in the business transaction. No RETURNING: that would need SELECT.
-- Locks: RowExclusiveLock on events, held to the end of the transaction as with every INSERT.
INSERT INTO {schema}.events
       (event_id, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type, headers)
VALUES ($1, $2, $3, $4, $5::text::json, $6, $7, $8::text::json)
