-- Caller: check. Rights that a relay needs and this role lacks. $1 = schema. Catalog only.
WITH needed (object, rights) AS (VALUES
  ('events', 'SELECT INSERT DELETE'),
  ('scheduled', 'SELECT INSERT DELETE'),
  ('events_id_seq', 'SELECT'),
  ('retries', 'SELECT INSERT UPDATE DELETE'),
  ('buckets', 'SELECT INSERT UPDATE DELETE'),
  ('relays', 'SELECT INSERT UPDATE DELETE'),
  ('config_in_force', 'SELECT INSERT UPDATE DELETE'),
  ('dead_letters', 'INSERT SELECT(id)'),
  ('history', 'INSERT'),
  ('audit', 'INSERT'),
  ('_sqlx_migrations', 'SELECT')
), found AS (
  SELECT c.oid, c.relkind, needed.object, right_name
    FROM needed
    JOIN pg_class AS c ON c.relname = needed.object
     AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1),
   LATERAL unnest(string_to_array(needed.rights, ' ')) AS right_name
)
SELECT 'USAGE', 'SCHEMA', NULL
  FROM pg_namespace WHERE nspname = $1 AND NOT has_schema_privilege(oid, 'USAGE')
UNION ALL
SELECT right_name, CASE relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, object
  FROM found
 WHERE NOT CASE WHEN relkind = 'S' THEN has_sequence_privilege(oid, right_name)
                WHEN right_name = 'SELECT(id)' THEN has_column_privilege(oid, 'id', 'SELECT')
                ELSE has_table_privilege(oid, right_name) END
