-- Called by: Lane::read, forward. $1 start (exclusive), $2 known ids above it, $3 most rows, $4 most bytes of one row,
-- $5 end (inclusive).
-- Index: events_pkey and retries_pkey from $1 on, merged. Locks: AccessShareLock.
--
-- What bounds the bytes of the page is a limit for each row, which costs a third of a running sum. `page`: 1 for a row
-- that fits. 0 for one that does not, or is compressed, so that its size would have to be found out: it comes without
-- its body, and the page is read by read_forward_sized.sql instead. `IS NOT TRUE` instead of NOT lets PostgreSQL 14 hash the
-- array too.
SELECT e.id, e.event_id, e.aggregate_type, e.aggregate_id, e.event_type,
       CASE WHEN e.fits THEN e.payload END AS payload,
       CASE WHEN e.fits THEN e.payload_bytes END AS payload_bytes, e.content_type,
       CASE WHEN e.fits THEN e.headers END AS headers, e.created_at, e.bucket,
       hashtextextended(e.aggregate_id, hashtextextended(e.aggregate_type, 0)) AS key,
       r.attempts, r.crashes, r.blocked,
       CASE WHEN r.id IS NOT NULL
            THEN (extract(epoch FROM r.next_attempt_at) - extract(epoch FROM clock_timestamp()))::float8 END AS due_in,
       e.fits::int AS page
  FROM (SELECT *,
               pg_column_compression(payload) IS NULL AND pg_column_compression(headers) IS NULL
               AND 256 + coalesce(pg_column_size(payload), 0) + coalesce(octet_length(payload_bytes), 0)
                   + coalesce(octet_length(content_type), 0) + coalesce(pg_column_size(headers), 0) <= $4 AS fits
          FROM {schema}.events
         WHERE id > $1 AND id <= $5
           AND (id = ANY ($2::bigint[])) IS NOT TRUE
         ORDER BY id
         LIMIT $3) AS e
  LEFT JOIN {schema}.retries AS r ON r.id = e.id AND r.event_id = e.event_id AND r.id > $1
 ORDER BY e.id
