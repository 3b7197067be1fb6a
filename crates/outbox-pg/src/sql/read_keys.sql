-- Called by: Lane::read, of keys. $1 after, $2 known ids, $3 most rows, $4 most bytes, $5 through, $6 keys, $7 span.
-- Index: events_pkey from $1 to $5, at most $7 rows of it, retries_pkey for each row that matches.
-- Locks: AccessShareLock.
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
          FROM (SELECT * FROM {schema}.events WHERE id > $1 AND id <= $5 ORDER BY id LIMIT $7) AS e
          LEFT JOIN {schema}.retries AS r ON r.id = e.id AND r.event_id = e.event_id
         WHERE hashtextextended(e.aggregate_id, hashtextextended(e.aggregate_type, 0)) = ANY ($6::bigint[])
           AND (e.id = ANY ($2::bigint[])) IS NOT TRUE
         ORDER BY e.id
         LIMIT $3) AS page
 WHERE coalesce(bytes_before, 0) < $4
 ORDER BY id
