-- Called by: Store::write_back, first in its transaction. $1 route, $2 buckets, $3 their tokens.
-- Index: buckets_pkey. Locks: FOR SHARE on the rows, so that a take-over waits for this transaction, and this
-- statement, when it had to wait for a take-over, sees the new token. A join inside the writing statement would not
-- fence: it reads the old snapshot.
SELECT b.bucket
  FROM {schema}.buckets AS b
 WHERE b.route = $1
   AND (b.bucket, b.token) IN (SELECT * FROM unnest($2::smallint[], $3::bigint[]))
   FOR SHARE
