-- Removes the outbox with all its events, delivered or not. The schema itself stays: it may hold other things.
DROP FUNCTION redrive(uuid);
DROP FUNCTION enqueue(text, text, text, json, json, uuid, bytea, text);
DROP VIEW all_events;
DROP TABLE audit;
DROP TABLE config_in_force;
DROP TABLE relays;
DROP TABLE buckets;
DROP TABLE scheduled;
DROP TABLE history;
DROP TABLE dead_letters;
DROP TABLE retries;
DROP TABLE events;
