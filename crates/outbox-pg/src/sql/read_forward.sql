-- Called by: Lane::read, forward. $1 start (exclusive), $2 known ids above it, $3 most rows, $4 most bytes.
-- Index: events_pkey from $1 on, retries_pkey for each row. Locks: AccessShareLock.
--
-- `IS NOT TRUE` instead of NOT lets PostgreSQL 14 hash the array too. A stored value that is not compressed tells its
-- length without being fetched; a compressed one must be unpacked to know it.
SELECT id, event_id, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type, headers,
       created_at, bucket, key, attempts, due_in
  FROM (SELECT e.id, e.event_id, e.aggregate_type, e.aggregate_id, e.event_type, e.payload, e.payload_bytes,
               e.content_type, e.headers, e.created_at, e.bucket,
               hashtextextended(e.aggregate_id, hashtextextended(e.aggregate_type, 0)) AS key,
               r.attempts,
               (extract(epoch FROM r.next_attempt_at) - extract(epoch FROM clock_timestamp()))::float8 AS due_in,
               sum(256
                   + CASE WHEN pg_column_compression(e.payload) IS NULL THEN coalesce(pg_column_size(e.payload), 0)
                          ELSE octet_length(e.payload::text) END
                   + coalesce(octet_length(e.payload_bytes), 0)
                   + CASE WHEN pg_column_compression(e.headers) IS NULL THEN coalesce(pg_column_size(e.headers), 0)
                          ELSE octet_length(e.headers::text) END
               ) OVER (ORDER BY e.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
               AS bytes_before
          FROM {schema}.events AS e
          LEFT JOIN {schema}.retries AS r ON r.id = e.id AND r.event_id = e.event_id
         WHERE e.id > $1
           AND (e.id = ANY ($2::bigint[])) IS NOT TRUE
         ORDER BY e.id
         LIMIT $3) AS page
 WHERE coalesce(bytes_before, 0) < $4
 ORDER BY id
