-- Called by: Lane::read, of keys, in the snapshot of read_keys.sql: where its span ended, if the span was full.
-- $1 after, $2 through, $3 span - 1. Index: events_pkey. Locks: AccessShareLock.
SELECT id FROM {schema}.events WHERE id > $1 AND id <= $2 ORDER BY id OFFSET $3 LIMIT 1
