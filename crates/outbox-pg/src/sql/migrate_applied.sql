-- Caller: migrate, status. What was applied, a few rows.
SELECT version, checksum, success FROM {schema}._sqlx_migrations ORDER BY version
