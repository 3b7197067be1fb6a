-- Called by: Lane::read, of keys, of a route with a filter or of some buckets. $1 after, $2 known ids, $3 most rows, $4 most
-- bytes, $5 through, $6 keys, $7 span, $8 to $14 the filter as in read_forward_matching.sql.
-- Index: events_pkey from $1 to $5, at most $7 rows of it, of any route, retries_pkey for each row that matches.
-- Locks: AccessShareLock. `page` as in read_forward_sized.sql.
SELECT e.id, e.event_id, e.aggregate_type, e.aggregate_id, e.event_type,
       CASE WHEN e.fits THEN e.payload END AS payload,
       CASE WHEN e.fits THEN e.payload_bytes END AS payload_bytes, e.content_type,
       CASE WHEN e.fits THEN e.headers END AS headers, e.created_at, e.bucket, e.key,
       r.attempts, r.crashes, r.blocked,
       CASE WHEN r.id IS NOT NULL
            THEN (extract(epoch FROM r.next_attempt_at) - extract(epoch FROM clock_timestamp()))::float8 END AS due_in,
       CASE WHEN NOT e.fits THEN 0 WHEN e.bytes_through >= $4 THEN 2 ELSE 1 END AS page
  FROM (SELECT *, bytes_through <= $4 OR bytes_through = bytes AS fits
          FROM (SELECT *, sum(bytes) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS bytes_through
          FROM (SELECT *,
                       hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)) AS key,
                       256
                       + CASE WHEN pg_column_compression(payload) IS NULL THEN coalesce(pg_column_size(payload), 0)
                              ELSE octet_length(payload::text) END
                       + coalesce(octet_length(payload_bytes), 0) + coalesce(octet_length(content_type), 0)
                       + CASE WHEN pg_column_compression(headers) IS NULL THEN coalesce(pg_column_size(headers), 0)
                              ELSE octet_length(headers::text) END AS bytes
                  FROM (SELECT * FROM {schema}.events WHERE id > $1 AND id <= $5 ORDER BY id LIMIT $7) AS span
                 WHERE hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)) = ANY ($6::bigint[])
                   AND (id = ANY ($2::bigint[])) IS NOT TRUE
                   AND ($14::bigint >> bucket) & 1 = 1
                   AND aggregate_type LIKE ANY ($8::text[]) AND event_type LIKE ANY ($9::text[])
                   AND NOT aggregate_type LIKE ANY ($10::text[]) AND NOT event_type LIKE ANY ($11::text[])
                   AND (SELECT true FROM unnest($12::text[], $13::text[]) AS p (a, e)
                         WHERE span.aggregate_type LIKE p.a AND span.event_type LIKE p.e LIMIT 1) IS NULL
                 ORDER BY id
                 LIMIT $3) AS page) AS summed) AS e
  LEFT JOIN {schema}.retries AS r ON r.id = e.id AND r.event_id = e.event_id AND r.id > $1
 WHERE e.bytes_through - e.bytes < $4
 ORDER BY e.id
