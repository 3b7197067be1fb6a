-- Called by: Store::forget_deaths. $1 route, $2 owner, $3 buckets. The owner is the fence: nobody else has its id.
-- Index: buckets_pkey. Locks: the rows themselves.
UPDATE {schema}.buckets SET deaths = 0 WHERE route = $1 AND owner = $2 AND bucket = ANY ($3::smallint[]) AND deaths > 0
