-- The outbox. The table that a row is in is its state; there is no state column.
--
-- Names are unqualified: whoever runs this file sets search_path to the outbox's schema alone first. Nothing created
-- here depends on a caller's search_path later: constraints, the generated column, the view and the function bodies
-- (BEGIN ATOMIC) are bound to their objects when they are created.

-- Exactly the events that are not yet confirmed. Never updated: INSERT by producers, DELETE by relays.
-- The storage options are PostgreSQL's own on purpose: readers go by id above a cursor, so dead rows cost them nothing.
CREATE TABLE events (
  id             bigint GENERATED ALWAYS AS IDENTITY,
  event_id       uuid NOT NULL DEFAULT gen_random_uuid(),
  aggregate_type text NOT NULL,
  aggregate_id   text NOT NULL,
  event_type     text NOT NULL,
  payload        json,
  payload_bytes  bytea,
  content_type   text,
  headers        json,
  created_at     timestamptz NOT NULL DEFAULT now(),
  -- 64 for ever: what a bucket holds is computed here and nowhere else.
  bucket         smallint NOT NULL GENERATED ALWAYS AS ((hashtext(aggregate_id) & 63)::smallint) STORED,
  CONSTRAINT events_pkey PRIMARY KEY (id),
  -- Relays read from zero; an id below it can only have been written by hand.
  CONSTRAINT events_id CHECK (id > 0),
  CONSTRAINT events_one_payload CHECK (num_nonnulls(payload, payload_bytes) = 1),
  CONSTRAINT events_aggregate_type CHECK (octet_length(aggregate_type) BETWEEN 1 AND 255),
  CONSTRAINT events_aggregate_id CHECK (octet_length(aggregate_id) BETWEEN 1 AND 255),
  CONSTRAINT events_event_type CHECK (octet_length(event_type) BETWEEN 1 AND 255),
  CONSTRAINT events_content_type CHECK (octet_length(content_type) <= 255),
  CONSTRAINT events_created_at CHECK (isfinite(created_at))
);
COMMENT ON TABLE events IS 'Events that are committed and not yet confirmed by a broker. Insert here, in your transaction.';
COMMENT ON COLUMN events.id IS 'The order in which events are delivered. Never written by hand.';
COMMENT ON COLUMN events.payload IS 'One JSON value, delivered byte for byte. Exactly one of payload and payload_bytes is set.';
COMMENT ON COLUMN events.headers IS 'A flat JSON object of strings.';

-- One row per event that has failed or may have killed a relay; empty in the steady state.
-- event_id tells a row of this event from one that an id of before a TRUNCATE ... RESTART IDENTITY left behind.
CREATE TABLE retries (
  id              bigint NOT NULL,
  event_id        uuid NOT NULL,
  bucket          smallint NOT NULL,
  aggregate_type  text NOT NULL,
  aggregate_id    text NOT NULL,
  attempts        integer NOT NULL DEFAULT 0,
  crashes         integer NOT NULL DEFAULT 0,
  next_attempt_at timestamptz NOT NULL DEFAULT now(),
  blocked         boolean NOT NULL DEFAULT false,
  last_error_kind text,
  last_error      text,
  updated_at      timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT retries_pkey PRIMARY KEY (id),
  CONSTRAINT retries_attempts CHECK (attempts >= 0 AND crashes >= 0),
  CONSTRAINT retries_bucket CHECK (bucket BETWEEN 0 AND 63),
  CONSTRAINT retries_last_error CHECK (octet_length(last_error) <= 4096)
);
CREATE INDEX retries_next_attempt_at ON retries (next_attempt_at);

-- Events that were given up. An id can come back after a restore, and with it the event id after TRUNCATE ... RESTART
-- IDENTITY: the time is in the key so that giving an event up never fails on what is there already.
CREATE TABLE dead_letters (
  id             bigint NOT NULL,
  event_id       uuid NOT NULL,
  aggregate_type text NOT NULL,
  aggregate_id   text NOT NULL,
  event_type     text NOT NULL,
  payload        json,
  payload_bytes  bytea,
  content_type   text,
  headers        json,
  created_at     timestamptz NOT NULL,
  attempts       integer NOT NULL,
  reason_kind    text NOT NULL,
  reason         text NOT NULL,
  died_at        timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT dead_letters_pkey PRIMARY KEY (id, event_id, died_at),
  CONSTRAINT dead_letters_reason CHECK (octet_length(reason) <= 4096)
);
CREATE INDEX dead_letters_event_id ON dead_letters (event_id);

-- Published events, if kept. Partitions are made ahead and dropped whole; the default one takes what falls between.
-- Without any index: a row is written for each published event and read only by people.
CREATE TABLE history (
  id             bigint NOT NULL,
  event_id       uuid NOT NULL,
  aggregate_type text NOT NULL,
  aggregate_id   text NOT NULL,
  event_type     text NOT NULL,
  payload        json,
  payload_bytes  bytea,
  content_type   text,
  headers        json,
  created_at     timestamptz NOT NULL,
  attempts       integer NOT NULL,
  published_at   timestamptz NOT NULL DEFAULT now()
) PARTITION BY RANGE (published_at);
CREATE TABLE history_default PARTITION OF history DEFAULT;

-- Events for later. They get a place in the order when they move into events.
CREATE TABLE scheduled (
  id             bigint GENERATED ALWAYS AS IDENTITY,
  event_id       uuid NOT NULL DEFAULT gen_random_uuid(),
  aggregate_type text NOT NULL,
  aggregate_id   text NOT NULL,
  event_type     text NOT NULL,
  payload        json,
  payload_bytes  bytea,
  content_type   text,
  headers        json,
  created_at     timestamptz NOT NULL DEFAULT now(),
  due_at         timestamptz NOT NULL,
  CONSTRAINT scheduled_pkey PRIMARY KEY (id),
  CONSTRAINT scheduled_event_id UNIQUE (event_id),
  CONSTRAINT scheduled_one_payload CHECK (num_nonnulls(payload, payload_bytes) = 1),
  CONSTRAINT scheduled_aggregate_type CHECK (octet_length(aggregate_type) BETWEEN 1 AND 255),
  CONSTRAINT scheduled_aggregate_id CHECK (octet_length(aggregate_id) BETWEEN 1 AND 255),
  CONSTRAINT scheduled_event_type CHECK (octet_length(event_type) BETWEEN 1 AND 255),
  CONSTRAINT scheduled_content_type CHECK (octet_length(content_type) <= 255),
  CONSTRAINT scheduled_created_at CHECK (isfinite(created_at)),
  CONSTRAINT scheduled_due_at CHECK (isfinite(due_at))
);
CREATE INDEX scheduled_due_at ON scheduled (due_at, id);

-- Who owns which bucket of which route. The token grows with every change of owner; deaths counts owners in a row
-- whose lease ended without a release. No foreign key to relays: the row of a dead relay may go first.
CREATE TABLE buckets (
  route  text NOT NULL,
  bucket smallint NOT NULL,
  owner  uuid,
  token  bigint NOT NULL DEFAULT 0,
  deaths integer NOT NULL DEFAULT 0,
  CONSTRAINT buckets_pkey PRIMARY KEY (route, bucket),
  CONSTRAINT buckets_route CHECK (octet_length(route) BETWEEN 1 AND 63),
  CONSTRAINT buckets_bucket CHECK (bucket BETWEEN 0 AND 63),
  CONSTRAINT buckets_deaths CHECK (deaths >= 0)
);

-- Live relays: one row and one renewal each, for each of its routes. The id is that of one run; the name is only a label.
-- How many share a route, and how they come one after another, tells how many buckets each should own.
CREATE TABLE relays (
  id                 uuid NOT NULL,
  route              text NOT NULL,
  name               text NOT NULL,
  lease_end          timestamptz NOT NULL,
  config_fingerprint text NOT NULL,
  version            text NOT NULL,
  started_at         timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT relays_pkey PRIMARY KEY (id)
);

-- The ordered routes that may own buckets now. One row, there from the start so that it can always be locked.
CREATE TABLE config_in_force (
  one_row     boolean NOT NULL DEFAULT true,
  fingerprint text,
  routes      json,
  changed_at  timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT config_in_force_pkey PRIMARY KEY (one_row),
  CONSTRAINT config_in_force_one_row CHECK (one_row)
);
INSERT INTO config_in_force DEFAULT VALUES;

-- What operators did.
CREATE TABLE audit (
  id       bigint GENERATED ALWAYS AS IDENTITY,
  done_at  timestamptz NOT NULL DEFAULT now(),
  who      text NOT NULL DEFAULT session_user,
  action   text NOT NULL,
  filter   json,
  affected bigint NOT NULL,
  reason   text,
  CONSTRAINT audit_pkey PRIMARY KEY (id)
);

-- For people, not for relays: every event with its state.
CREATE VIEW all_events AS
  SELECT e.id, e.event_id, e.aggregate_type, e.aggregate_id, e.event_type, e.payload, e.payload_bytes,
         e.content_type, e.headers, e.created_at,
         CASE WHEN r.id IS NULL THEN 'pending' WHEN r.blocked THEN 'blocked' ELSE 'retrying' END AS state,
         coalesce(r.attempts, 0) AS attempts
    FROM events e LEFT JOIN retries r ON r.id = e.id AND r.event_id = e.event_id
  UNION ALL
  SELECT id, event_id, aggregate_type, aggregate_id, event_type, payload, payload_bytes,
         content_type, headers, created_at, 'scheduled', 0
    FROM scheduled
  UNION ALL
  SELECT id, event_id, aggregate_type, aggregate_id, event_type, payload, payload_bytes,
         content_type, headers, created_at, 'published', attempts
    FROM history
  UNION ALL
  SELECT id, event_id, aggregate_type, aggregate_id, event_type, payload, payload_bytes,
         content_type, headers, created_at, 'dead', attempts
    FROM dead_letters;

-- Writes an event in the caller's transaction and returns its event id. Needs no SELECT on events.
-- Call it with named arguments: enqueue(aggregate_type => 'order', ..., payload => '{...}').
CREATE FUNCTION enqueue(
  aggregate_type text,
  aggregate_id   text,
  event_type     text,
  payload        json DEFAULT NULL,
  headers        json DEFAULT NULL,
  event_id       uuid DEFAULT NULL,
  payload_bytes  bytea DEFAULT NULL,
  content_type   text DEFAULT NULL
) RETURNS uuid
LANGUAGE sql VOLATILE
BEGIN ATOMIC
  WITH chosen AS MATERIALIZED (
    SELECT coalesce(enqueue.event_id, gen_random_uuid()) AS event_id
  ), written AS (
    INSERT INTO events
           (event_id, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type, headers)
    SELECT chosen.event_id, enqueue.aggregate_type, enqueue.aggregate_id, enqueue.event_type,
           enqueue.payload, enqueue.payload_bytes, enqueue.content_type, enqueue.headers
      FROM chosen
  )
  SELECT chosen.event_id FROM chosen;
END;

-- Sends a dead letter again: it moves back into events with a new id, the same event id and no attempts.
-- Returns whether there was one.
CREATE FUNCTION redrive(event_id uuid) RETURNS boolean
LANGUAGE sql VOLATILE
BEGIN ATOMIC
  WITH moved AS (
    DELETE FROM dead_letters AS d WHERE d.event_id = redrive.event_id RETURNING d.*
  ), written AS (
    INSERT INTO events (event_id, aggregate_type, aggregate_id, event_type, payload, payload_bytes,
                        content_type, headers, created_at)
    SELECT m.event_id, m.aggregate_type, m.aggregate_id, m.event_type, m.payload, m.payload_bytes,
           m.content_type, m.headers, m.created_at
      FROM moved AS m
     ORDER BY m.id
  )
  SELECT count(*) > 0 FROM moved;
END;
