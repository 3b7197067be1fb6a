-- Called by: Lane::read, after read_begin.sql, when earlier reads ran out of time. $1 milliseconds.
-- Index: none. Locks: none. Local to the transaction.
SELECT set_config('statement_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $1, true)
