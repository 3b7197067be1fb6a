-- Caller: status. Who owns the buckets of each route. A full scan of buckets: 64 rows a route.
SELECT b.route, b.owner, r.name, r.version, count(*),
       (extract(epoch FROM r.lease_end - clock_timestamp()) * 1000000)::bigint,
       max(b.deaths)
  FROM {schema}.buckets AS b LEFT JOIN {schema}.relays AS r ON r.id = b.owner
 GROUP BY b.route, b.owner, r.name, r.version, r.lease_end
 ORDER BY b.route, b.owner
