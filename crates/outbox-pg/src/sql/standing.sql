-- Called by: Store::acquire and Store::take_more, behind lock_ownership.sql. $1 id. How many live relays share the route
-- with the same routes, and how many of them come before this one: the oldest first.
-- Index: none (one row for each live relay). Locks: AccessShareLock.
SELECT count(*), count(*) FILTER (WHERE (other.started_at, other.id) < (own.started_at, own.id))
  FROM {schema}.relays AS own
  JOIN {schema}.relays AS other
    ON other.route = own.route AND other.config_fingerprint = own.config_fingerprint
   AND (other.lease_end >= clock_timestamp() OR other.id = own.id)
 WHERE own.id = $1
