-- Called by: Store::give_back. $1 route, $2 owner, $3 buckets, $4 their tokens. By tokens, so that a call that comes late
-- does not free what this owner has taken anew. The deaths stay: who gives
-- back one of many may not have outlived what it took over. Index: buckets_pkey. Locks: the rows.
UPDATE {schema}.buckets SET owner = NULL
 WHERE route = $1 AND owner = $2
   AND (bucket, token) IN (SELECT * FROM unnest($3::smallint[], $4::bigint[]))
