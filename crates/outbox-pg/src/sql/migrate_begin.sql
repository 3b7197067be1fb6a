-- Caller: migrate. Read committed whatever the database's default is: the bookkeeping must be read after the lock was
-- got, not in a snapshot from before it. Read write for databases whose default is read only.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE
