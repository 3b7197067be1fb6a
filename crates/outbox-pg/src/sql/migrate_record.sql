-- Caller: migrate up, in the transaction of the migration itself.
INSERT INTO {schema}._sqlx_migrations (version, description, success, checksum, execution_time)
VALUES ($1, $2, true, $3, -1)
