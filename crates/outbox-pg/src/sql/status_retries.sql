-- Caller: status. Events with a retry row and those of them that are blocked, each counted up to $1. The table is empty
-- in the steady state. Reads at most $1 + 1 rows of it.
SELECT count(*), count(*) FILTER (WHERE blocked)
  FROM (SELECT blocked FROM {schema}.retries LIMIT $1 + 1) AS capped
