-- Called by: Store::acquire, after lock_ownership.sql and with a snapshot of its own. $1 the fingerprint of our routes.
-- Whether a relay with other routes owns a bucket: it may publish what ours may.
-- Index: relays_pkey. Locks: AccessShareLock.
SELECT EXISTS (SELECT FROM {schema}.buckets AS b JOIN {schema}.relays AS r ON r.id = b.owner
                WHERE r.config_fingerprint <> $1)
