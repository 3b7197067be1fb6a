-- Called by: what operators do, in the same transaction. $1 what was done, $2 the filter as JSON, $3 how many, $4 why,
-- $5 the user of the operating system. Index: none. Locks: the new row.
INSERT INTO {schema}.audit (who, action, filter, affected, reason)
VALUES (session_user || CASE WHEN $5::text IS NULL THEN '' ELSE ' (' || $5 || ')' END, $1, $2::json, $3, $4)
