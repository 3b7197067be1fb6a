-- Caller: migrate, before and after the lock. $1 = search_path: the quoted schema, then pg_temp, which would otherwise
-- come first and let a temporary table take the place of ours. $2 = how long one statement may wait for a lock.
SELECT set_config('search_path', $1, true), set_config('lock_timeout', $2, true)
