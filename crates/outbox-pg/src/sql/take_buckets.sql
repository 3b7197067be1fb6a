-- Called by: Store::acquire. $1 route, $2 owner. Index: buckets_pkey. Locks: the rows, locked already.
UPDATE {schema}.buckets SET owner = $2, token = token + 1 WHERE route = $1 RETURNING bucket, token
