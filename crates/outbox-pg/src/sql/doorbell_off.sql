-- Caller: migrate::doorbell, migrate::no_doorbell_sql. Producers ring no more; relays poll.
-- Locks: ACCESS EXCLUSIVE on events, for a moment, awaited up to lock_timeout.
DROP TRIGGER IF EXISTS outbox_doorbell ON {schema}.events;
