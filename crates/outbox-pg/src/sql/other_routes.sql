-- Called by: Store::acquire, after lock_ownership.sql. $1 route. Whether a live relay owns buckets of another route:
-- in this version a route takes every event, so a second one would send each of them again.
-- Index: buckets_pkey, relays_pkey. Locks: AccessShareLock.
SELECT b.route
  FROM {schema}.buckets AS b
  JOIN {schema}.relays AS r ON r.id = b.owner
 WHERE b.route <> $1
 LIMIT 1
