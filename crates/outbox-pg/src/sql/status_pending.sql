-- Caller: status and the sampler. Pending events above id $1, counted up to $2 by the primary key, beyond that the
-- server's own running estimate; the first of them, and how long ago, in microseconds, its transaction began. Reads at
-- most $2 + 1 rows.
SELECT counted.n, greatest(pg_stat_get_live_tuples(c.oid), counted.n), first.id, first.age
  FROM pg_class AS c
 CROSS JOIN (SELECT count(*) AS n
               FROM (SELECT FROM {schema}.events WHERE id > $1 ORDER BY id LIMIT $2 + 1) AS capped) AS counted
  LEFT JOIN (SELECT id, greatest(extract(epoch FROM clock_timestamp() - created_at) * 1000000, 0)::bigint AS age
               FROM {schema}.events WHERE id > $1 ORDER BY id LIMIT 1) AS first ON true
 WHERE c.relname = 'events' AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $3)
