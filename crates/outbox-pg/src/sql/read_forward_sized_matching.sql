-- Called by: Lane::read, forward, of a route with a filter or of some buckets, where rows are too large for
-- read_forward_matching.sql. $1 start (exclusive), $2 known ids above it, $3 most rows, $4 most bytes of all rows, $5 end (inclusive), $6 to $12 the
-- filter as there.
-- Index: events_pkey and retries_pkey from $1 to $5, merged. Locks: AccessShareLock. `page` as in read_forward_sized.sql.
SELECT e.id, e.event_id, e.aggregate_type, e.aggregate_id, e.event_type,
       CASE WHEN e.fits THEN e.payload END AS payload,
       CASE WHEN e.fits THEN e.payload_bytes END AS payload_bytes, e.content_type,
       CASE WHEN e.fits THEN e.headers END AS headers, e.created_at, e.bucket,
       hashtextextended(e.aggregate_id, hashtextextended(e.aggregate_type, 0)) AS key,
       r.attempts, r.crashes, r.blocked,
       CASE WHEN r.id IS NOT NULL
            THEN (extract(epoch FROM r.next_attempt_at) - extract(epoch FROM clock_timestamp()))::float8 END AS due_in,
       CASE WHEN NOT e.fits THEN 0 WHEN e.bytes_through >= $4 THEN 2 ELSE 1 END AS page
  FROM (SELECT *, bytes_through <= $4 OR bytes_through = bytes AS fits
          FROM (SELECT *, sum(bytes) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS bytes_through
          FROM (SELECT *,
                       256
                       + CASE WHEN pg_column_compression(payload) IS NULL THEN coalesce(pg_column_size(payload), 0)
                              ELSE octet_length(payload::text) END
                       + coalesce(octet_length(payload_bytes), 0) + coalesce(octet_length(content_type), 0)
                       + CASE WHEN pg_column_compression(headers) IS NULL THEN coalesce(pg_column_size(headers), 0)
                              ELSE octet_length(headers::text) END AS bytes
                  FROM {schema}.events AS o
                 WHERE id > $1 AND id <= $5
                   AND (id = ANY ($2::bigint[])) IS NOT TRUE
                   AND ($12::bigint >> bucket) & 1 = 1
                   AND aggregate_type LIKE ANY ($6::text[]) AND event_type LIKE ANY ($7::text[])
                   AND NOT aggregate_type LIKE ANY ($8::text[]) AND NOT event_type LIKE ANY ($9::text[])
                   AND (SELECT true FROM unnest($10::text[], $11::text[]) AS p (a, e)
                         WHERE o.aggregate_type LIKE p.a AND o.event_type LIKE p.e LIMIT 1) IS NULL
                 ORDER BY id
                 LIMIT $3) AS page) AS summed) AS e
  LEFT JOIN {schema}.retries AS r ON r.id = e.id AND r.event_id = e.event_id AND r.id > $1 AND r.id <= $5
 WHERE e.bytes_through - e.bytes < $4
 ORDER BY e.id
