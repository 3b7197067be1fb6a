-- Called by: Lane::sweep, of a route with a filter or of some buckets. $1 after, $2 through, $3 most rows, $4 to $10 the
-- filter as in read_forward_matching.sql. Ids and keys only, with the rows that are not its own, so that a page ends somewhere.
-- Index: events_pkey. Locks: AccessShareLock.
SELECT id, hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)) AS key,
       ($10::bigint >> bucket) & 1 = 1
       AND aggregate_type LIKE ANY ($4::text[]) AND event_type LIKE ANY ($5::text[])
       AND NOT aggregate_type LIKE ANY ($6::text[]) AND NOT event_type LIKE ANY ($7::text[])
       AND (SELECT true FROM unnest($8::text[], $9::text[]) AS p (a, e)
             WHERE o.aggregate_type LIKE p.a AND o.event_type LIKE p.e LIMIT 1) IS NULL AS own
  FROM {schema}.events AS o
 WHERE id > $1 AND id <= $2
 ORDER BY id
 LIMIT $3
