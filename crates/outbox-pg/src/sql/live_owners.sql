-- Called by: Store::acquire, after lock_buckets.sql and with a snapshot of its own: an owner that took the buckets a
-- moment ago is visible by now. $1 owners. Index: relays_pkey. Locks: AccessShareLock.
SELECT count(*) FROM {schema}.relays WHERE id = ANY ($1::uuid[])
