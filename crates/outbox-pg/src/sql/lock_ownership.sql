-- Called by: Store::acquire and Store::take_more, first in their transaction: only one relay at a time takes. $1 our routes,
-- as JSON. Returns the routes in force with their fingerprint, and the fingerprint of ours.
-- Index: none (one row). Locks: the row, FOR UPDATE; held for a few statements.
SELECT fingerprint, routes::text, encode(sha256(convert_to($1::text, 'UTF8')), 'hex') AS ours
  FROM {schema}.config_in_force FOR UPDATE
