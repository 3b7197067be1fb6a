-- Called by: Doorbell, when its routes have found nothing. $1 key. Never waits.
-- Locks: the advisory key of the session, exclusively, if it can be had.
SELECT pg_try_advisory_lock($1)
