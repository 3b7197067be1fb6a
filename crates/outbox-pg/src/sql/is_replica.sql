-- Called by: all of the store's calls, on each new connection.
-- Index: none. Locks: none.
SELECT pg_is_in_recovery()
