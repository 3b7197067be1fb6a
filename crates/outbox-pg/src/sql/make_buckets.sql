-- Called by: Store::acquire. $1 route. Index: buckets_pkey. Locks: the new rows.
INSERT INTO {schema}.buckets (route, bucket)
SELECT $1, bucket FROM generate_series(0, 63) AS bucket
ON CONFLICT DO NOTHING
