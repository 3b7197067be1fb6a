-- Called by: Store::acquire and Store::take_more, behind lock_ownership.sql: one relay at a time takes. $1 route, $2 owner,
-- $3 buckets that it owns already, $4 how many more at most.
-- Free is what has no owner, whose owner's row is gone, and what is this owner's without its knowledge: the answer to a
-- call that took it was lost. A relay whose lease has ended has lost its row before: see expire_relays.sql.
-- Index: buckets_pkey, relays_pkey. Locks: the rows, FOR UPDATE, never waiting: what a write-back of an earlier owner
-- holds is taken the next time.
-- Who gives back leaves no owner: one that is still there has died, or could not reach the database for longer than its
-- lease, unless it is this one itself.
WITH free AS MATERIALIZED (
  SELECT bucket
    FROM {schema}.buckets AS f
   WHERE route = $1
     AND (owner IS NULL
          OR owner = $2 AND bucket <> ALL ($3::smallint[])
          OR NOT EXISTS (SELECT FROM {schema}.relays AS r WHERE r.id = f.owner))
   ORDER BY bucket
   LIMIT $4
     FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.buckets AS b
   SET owner = $2, token = b.token + 1,
       deaths = CASE WHEN b.owner IS NULL OR b.owner = $2 THEN b.deaths ELSE b.deaths + 1 END
  FROM free
 WHERE b.route = $1 AND b.bucket = free.bucket
RETURNING b.bucket, b.token, b.deaths
