-- Caller: migrate, status. What is there already. $1 = schema. Reads the catalog by name, without locks.
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1),
       EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                WHERE n.nspname = $1 AND c.relname = '_sqlx_migrations')
