-- Called by: Store::retry_states. $1 ids, $2 event ids. One row for each, in their order.
-- Index: events_pkey, retries_pkey. Locks: AccessShareLock.
SELECT e.id IS NOT NULL AS there, r.attempts, r.crashes, r.blocked,
       CASE WHEN r.id IS NOT NULL
            THEN (extract(epoch FROM r.next_attempt_at) - extract(epoch FROM clock_timestamp()))::float8 END AS due_in
  FROM unnest($1::bigint[], $2::uuid[]) WITH ORDINALITY AS w (id, event_id, place)
  LEFT JOIN {schema}.events AS e ON e.id = w.id AND e.event_id = w.event_id
  LEFT JOIN {schema}.retries AS r ON r.id = w.id AND r.event_id = w.event_id
 ORDER BY w.place
