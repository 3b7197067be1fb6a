-- Caller: check. The sequence of events, tables whose row-level security applies to us, and whether a subscription
-- writes into events, whether the doorbell rings. $1 = schema. Catalog only, without locks on our tables; no row when events is not there.
SELECT s.seqincrement, s.seqcache,
       ARRAY(SELECT t.relname::text FROM pg_class AS t
              WHERE t.relnamespace = n.oid AND t.relkind IN ('r', 'p') AND row_security_active(t.oid)
              ORDER BY t.relname),
       EXISTS (SELECT FROM pg_subscription_rel AS p WHERE p.srrelid = e.oid),
       EXISTS (SELECT FROM pg_trigger AS d
                WHERE d.tgrelid = e.oid AND d.tgname = 'outbox_doorbell' AND d.tgenabled IN ('O', 'A'))
  FROM pg_namespace AS n
  JOIN pg_class AS e ON e.relnamespace = n.oid AND e.relname = 'events' AND e.relkind = 'r'
  LEFT JOIN pg_class AS q ON q.relnamespace = n.oid AND q.relname = 'events_id_seq' AND q.relkind = 'S'
  LEFT JOIN pg_sequence AS s ON s.seqrelid = q.oid
 WHERE n.nspname = $1
