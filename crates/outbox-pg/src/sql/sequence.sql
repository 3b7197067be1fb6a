-- Called by: Lane::open. The name of the sequence behind events.id, quoted: it follows renames.
-- Index: none. Locks: none.
SELECT pg_get_serial_sequence('{schema}.events', 'id')
