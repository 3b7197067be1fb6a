-- Caller: migrate down, in the transaction of the migration itself. By primary key.
DELETE FROM {schema}._sqlx_migrations WHERE version = $1
