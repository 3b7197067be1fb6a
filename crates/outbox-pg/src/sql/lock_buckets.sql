-- Called by: Store::acquire, first in its transaction. $1 route. Returns the latest owner of each bucket that no one
-- else holds locked. Index: buckets_pkey. Locks: the rows, FOR UPDATE, never waiting.
SELECT owner FROM {schema}.buckets WHERE route = $1 ORDER BY bucket FOR UPDATE SKIP LOCKED
