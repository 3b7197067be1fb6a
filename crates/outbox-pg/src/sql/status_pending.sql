-- Caller: status. Pending events above id $1, counted up to $2 by the primary key, beyond that the server's own running
-- estimate; and how long ago, in microseconds, the transaction of the first began. Reads at most $2 + 1 rows.
SELECT counted.n, greatest(pg_stat_get_live_tuples(c.oid), counted.n),
       (SELECT greatest(extract(epoch FROM clock_timestamp() - first.created_at) * 1000000, 0)::bigint
          FROM {schema}.events AS first WHERE first.id > $1 ORDER BY first.id LIMIT 1)
  FROM pg_class AS c,
       (SELECT count(*) AS n
          FROM (SELECT FROM {schema}.events WHERE id > $1 ORDER BY id LIMIT $2 + 1) AS capped) AS counted
 WHERE c.relname = 'events' AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $3)
