-- Called by: Doorbell, once for each listening session. $1 schema. The key of the schema's doorbell, as the trigger
-- computes it, and whether the trigger is there and fires for ordinary sessions. No row when events is not there.
-- Index: catalogs only. Locks: none.
SELECT hashtextextended('outbox doorbell ' || n.nspname, 0) AS key,
       EXISTS (SELECT FROM pg_trigger AS t
                WHERE t.tgrelid = c.oid AND t.tgname = 'outbox_doorbell' AND t.tgenabled IN ('O', 'A')) AS rings
  FROM pg_namespace AS n
  JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = 'events'
 WHERE n.nspname = $1
