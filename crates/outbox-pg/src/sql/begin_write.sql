-- Called by: Store::acquire and Store::write_back. READ COMMITTED whatever the role's default is: after a wait for a
-- row each statement must see what the other transaction left. Should this relay vanish in the middle, the server gives
-- its locks back long before TCP would notice. Local to the transaction, so a pooler hands on a clean session.
-- Index: none. Locks: none.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL statement_timeout = '15s';
SET LOCAL idle_in_transaction_session_timeout = '15s'
