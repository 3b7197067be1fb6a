-- Called by: Store::acquire. $1 id, $2 name, $3 lease in seconds, $4 version, $5 the fingerprint of its routes, $6 route.
-- Index: relays_pkey. Locks: the new row.
INSERT INTO {schema}.relays (id, route, name, lease_end, config_fingerprint, version)
VALUES ($1, $6, $2, clock_timestamp() + make_interval(secs => $3), $5, $4)
