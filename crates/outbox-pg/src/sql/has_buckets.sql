-- Called by: Store::acquire. $1 route. Whether its buckets have been made. Index: buckets_pkey. Locks: AccessShareLock.
SELECT EXISTS (SELECT FROM {schema}.buckets WHERE route = $1 AND bucket = 63)
