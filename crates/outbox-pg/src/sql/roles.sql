-- Caller: migrate::roles_sql; for an administrator to read and run. May be run again at any time.
-- Three group roles; grant them to login roles: GRANT outbox_producer TO my_service;
-- Roles belong to the whole cluster, the grants to this schema.
DO $roles$
DECLARE
  role_name text;
BEGIN
  FOREACH role_name IN ARRAY ARRAY['outbox_producer', 'outbox_relay', 'outbox_reader'] LOOP
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role_name) THEN
      BEGIN
        EXECUTE 'CREATE ROLE ' || role_name || ' NOLOGIN';
      EXCEPTION WHEN duplicate_object OR unique_violation THEN
        NULL; -- somebody else has just made it
      END;
    END IF;
  END LOOP;
END
$roles$;

GRANT USAGE ON SCHEMA {schema} TO outbox_producer, outbox_relay, outbox_reader;

-- A producer writes events and can neither read them nor choose their place in the order: id, bucket and created_at
-- are not granted, nor is the sequence. What the functions do is bound by the rights of their caller.
GRANT INSERT (event_id, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type, headers)
  ON {schema}.events TO outbox_producer;

-- A relay never updates events and never reads bodies that were given up or published.
GRANT SELECT, INSERT, DELETE ON {schema}.events, {schema}.scheduled TO outbox_relay;
GRANT SELECT ON SEQUENCE {schema}.events_id_seq TO outbox_relay;
GRANT SELECT, INSERT, UPDATE, DELETE
  ON {schema}.retries, {schema}.buckets, {schema}.relays, {schema}.config_in_force TO outbox_relay;
GRANT INSERT ON {schema}.dead_letters, {schema}.history, {schema}.audit TO outbox_relay;
-- To count dead letters, and to see that the tables are of the right version.
GRANT SELECT (id) ON {schema}.dead_letters TO outbox_relay;
GRANT SELECT ON {schema}._sqlx_migrations TO outbox_relay;

-- A reader sees everything and changes nothing.
GRANT SELECT
  ON {schema}.events, {schema}.retries, {schema}.dead_letters, {schema}.history, {schema}.scheduled, {schema}.buckets,
     {schema}.relays, {schema}.config_in_force, {schema}.audit, {schema}.all_events, {schema}._sqlx_migrations
  TO outbox_reader;
GRANT SELECT ON SEQUENCE {schema}.events_id_seq TO outbox_reader;
