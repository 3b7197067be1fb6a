-- Called by: Store::release: all that the owner has, and its own row. $1 route, $2 owner.
-- Index: buckets_pkey, relays_pkey. Locks: rows of buckets, then the relay's.
WITH given_back AS (
  UPDATE {schema}.buckets SET owner = NULL, deaths = 0 WHERE route = $1 AND owner = $2 RETURNING bucket
)
DELETE FROM {schema}.relays WHERE (SELECT count(*) FROM given_back) >= 0 AND id = $2
