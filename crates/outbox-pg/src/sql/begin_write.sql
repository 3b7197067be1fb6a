-- Called by: all of the store's calls but reads, and a settle that is one statement. READ COMMITTED whatever the role's
-- default is: after a wait for a row each statement must see what the other transaction left. Not READ WRITE: who makes a
-- database read only for a while means relays too. Should this relay vanish in the middle, the server gives its locks back
-- long before TCP would notice; should it give a call up, the server does too, for what waits for a lock does not notice
-- that its client has gone. {limit_ms}: the call's own deadline.
-- Without sequential scans, since PostgreSQL takes a thousand ids among 200 000 rows for reason enough to read them all;
-- without JIT, since the price that is put on those left makes it compile for a tenth of a second what takes none.
-- Local to the transaction, so a pooler hands on a clean session.
-- Index: none. Locks: none.
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL enable_seqscan = off;
SET LOCAL jit = off;
SET LOCAL statement_timeout = '{limit_ms}ms';
SET LOCAL idle_in_transaction_session_timeout = '15s'
