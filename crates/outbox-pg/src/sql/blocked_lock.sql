-- Called by: blocked::retry and blocked::skip, first in their transaction. $1 to $5 as in blocked_list.sql. Whoever waits
-- here for another operator sees what that one has left: a row that is blocked no more is not returned.
-- Index: retries_pkey from $1 on. Locks: the rows, FOR UPDATE, in the order of their ids.
SELECT r.id, r.event_id
  FROM {schema}.retries AS r
 WHERE r.blocked AND r.id > $1
   AND ($3::uuid[] IS NULL OR r.event_id = ANY ($3::uuid[]))
   AND ($4::text IS NULL OR r.aggregate_type = $4)
   AND ($5::text IS NULL OR r.aggregate_id = $5)
 ORDER BY r.id
 LIMIT $2
   FOR UPDATE
