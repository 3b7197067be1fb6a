-- Caller: status. Dead letters, counted up to $1 by the primary key. Needs SELECT on the column id alone.
SELECT count(*) FROM (SELECT id FROM {schema}.dead_letters LIMIT $1 + 1) AS capped
