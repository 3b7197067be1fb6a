-- Called by: Store::settle, when the ids lie close together. $1 ids, $2 their event ids, $3 the lowest id, $4 the highest.
-- Index: events_pkey from $3 to $4. Locks: RowExclusiveLock, the rows themselves.
-- One walk along the index costs a third less than a search for each id. `IS TRUE` keeps the list a hashed subplan: as
-- a join it could become a nested loop over both.
DELETE FROM {schema}.events
 WHERE id BETWEEN $3 AND $4
   AND ((id, event_id) IN (SELECT * FROM unnest($1::bigint[], $2::uuid[]))) IS TRUE
