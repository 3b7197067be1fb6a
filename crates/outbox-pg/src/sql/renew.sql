-- Called by: Store::renew. $1 id, $2 lease in seconds. No row: another relay has declared this one dead.
-- Index: relays_pkey. Locks: the row.
UPDATE {schema}.relays SET lease_end = clock_timestamp() + make_interval(secs => $2) WHERE id = $1
