-- Called by: Store::renew. $1 id, $2 lease in seconds, $3 buckets that it owns. No row: another relay has declared this one
-- dead. Besides, how many live relays share the route, how many of them come before this one, and how many buckets it
-- might take: as standing.sql and take_buckets.sql count.
-- Index: relays_pkey, buckets_pkey (64 rows). Locks: the relay's row.
WITH own AS (
  UPDATE {schema}.relays SET lease_end = clock_timestamp() + make_interval(secs => $2) WHERE id = $1
  RETURNING id, route, config_fingerprint, started_at
)
SELECT (SELECT count(*) FROM {schema}.relays AS other
         WHERE other.route = own.route AND other.config_fingerprint = own.config_fingerprint
           AND (other.lease_end >= clock_timestamp() OR other.id = own.id)),
       (SELECT count(*) FROM {schema}.relays AS other
         WHERE other.route = own.route AND other.config_fingerprint = own.config_fingerprint
           AND other.lease_end >= clock_timestamp() AND other.id <> own.id
           AND (other.started_at, other.id) < (own.started_at, own.id)),
       (SELECT count(*) FROM {schema}.buckets AS b
         WHERE b.route = own.route
           AND CASE b.owner = own.id
               WHEN true THEN b.bucket <> ALL ($3::smallint[])
               ELSE NOT EXISTS (SELECT FROM {schema}.relays AS r
                                 WHERE r.id = b.owner AND r.lease_end >= clock_timestamp()) END)
  FROM own
