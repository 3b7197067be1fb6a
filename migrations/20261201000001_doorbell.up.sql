-- The doorbell: a commit rings only while a relay sleeps.
--
-- A sleeping relay holds the advisory key of its schema exclusively. A producer that can have it in shared mode knows that
-- a relay is awake, and holds it until its commit is visible; so a relay that gets the key afterwards sees that commit.
-- Notifying at every commit instead would serialise all commits of the database on one lock.
CREATE FUNCTION ring_doorbell() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  key constant bigint := pg_catalog.hashtextextended('outbox doorbell ' || TG_TABLE_SCHEMA, 0);
BEGIN
  IF NOT pg_catalog.pg_try_advisory_xact_lock_shared(key) THEN
    PERFORM pg_catalog.pg_notify('outbox_' || key, '');
  END IF;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION ring_doorbell() IS 'Wakes a sleeping relay when this transaction commits.';

CREATE TRIGGER outbox_doorbell AFTER INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION ring_doorbell();
