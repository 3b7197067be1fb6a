-- Called by: Doorbell, after doorbell_ask.sql was refused. $1 key. Whether a relay holds it: producers do in shared mode.
-- Index: none (the lock table in memory). Locks: none.
SELECT EXISTS (SELECT FROM pg_locks
                WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND mode = 'ExclusiveLock'
                  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                  AND classid::bigint = ($1::bigint >> 32) & 4294967295 AND objid::bigint = $1::bigint & 4294967295)
