-- Called by: Store::take_more. $1 id. No row: another relay has declared this one dead, and what it took would be free.
-- Index: relays_pkey. Locks: the row, so that nobody declares it dead before the transaction ends.
SELECT true FROM {schema}.relays WHERE id = $1 FOR UPDATE
