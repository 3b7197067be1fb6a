-- Called by: Lane::read, forward, where rows are too large for read_forward.sql. $1 start (exclusive), $2 known ids
-- above it, $3 most rows, $4 most bytes of all rows, $5 end (inclusive).
-- Index: events_pkey and retries_pkey from $1 on, merged. Locks: AccessShareLock.
--
-- `IS NOT TRUE` instead of NOT lets PostgreSQL 14 hash the array too. A stored value that is not compressed tells its
-- length without being fetched; a compressed one must be unpacked to know it. `page`: 1 for a row that fits; 2 for one
-- that fits and reaches the limit of bytes, so that rows after it, if any, were left out; 0 for one that would exceed
-- the limit and is not the first: it comes without its body, to be read as the first of the next page.
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
                  FROM {schema}.events
                 WHERE id > $1 AND id <= $5
                   AND (id = ANY ($2::bigint[])) IS NOT TRUE
                 ORDER BY id
                 LIMIT $3) AS page) AS summed) AS e
  LEFT JOIN {schema}.retries AS r ON r.id = e.id AND r.event_id = e.event_id AND r.id > $1
 WHERE e.bytes_through - e.bytes < $4
 ORDER BY e.id
