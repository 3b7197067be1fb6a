-- Caller: status. Events with a retry row, and aggregates of those that are blocked, each counted up to $1. The table is
-- empty in the steady state. Reads at most $1 + 1 rows of it.
SELECT count(*), count(DISTINCT (aggregate_type, aggregate_id)) FILTER (WHERE blocked)
  FROM (SELECT blocked, aggregate_type, aggregate_id FROM {schema}.retries LIMIT $1 + 1) AS capped
