-- Called by: blocked::list. $1 after (exclusive), $2 most rows, $3 event ids, $4 aggregate type, $5 aggregate id; what is
-- null selects all. Blocked events with what became of them.
-- Index: retries_pkey from $1 on. Locks: AccessShareLock.
SELECT r.id, r.event_id, r.aggregate_type, r.aggregate_id, e.event_type, r.attempts, r.crashes,
       coalesce(r.last_error_kind, ''), coalesce(r.last_error, ''),
       greatest((extract(epoch FROM clock_timestamp() - r.updated_at) * 1000000)::bigint, 0)
  FROM {schema}.retries AS r JOIN {schema}.events AS e ON e.id = r.id AND e.event_id = r.event_id
 WHERE r.blocked AND r.id > $1
   AND ($3::uuid[] IS NULL OR r.event_id = ANY ($3::uuid[]))
   AND ($4::text IS NULL OR r.aggregate_type = $4)
   AND ($5::text IS NULL OR r.aggregate_id = $5)
 ORDER BY r.id
 LIMIT $2
