-- Caller: migrate. Lets one runner at a time work on a schema; ends with the transaction, so that no pooler and no
-- failure can leave it behind. $1 = schema. Locks: one advisory lock per schema, awaited up to lock_timeout.
SELECT pg_advisory_xact_lock(hashtextextended('outbox migrate ' || $1, 0))
