-- Called by: Store::acquire, behind lock_ownership.sql and others_at_work.sql. $1 fingerprint, $2 routes as JSON.
-- Index: none (one row). Locks: the row, locked already.
UPDATE {schema}.config_in_force SET fingerprint = $1, routes = $2::text::json, changed_at = clock_timestamp()
