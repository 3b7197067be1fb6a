-- Caller: migrate::doorbell. Creates the trigger that rings, or turns it on again.
-- Locks: SHARE ROW EXCLUSIVE on events, which waits for writers up to lock_timeout.
DROP TRIGGER IF EXISTS outbox_doorbell ON {schema}.events;
CREATE TRIGGER outbox_doorbell AFTER INSERT ON {schema}.events
  FOR EACH STATEMENT EXECUTE FUNCTION {schema}.ring_doorbell();
