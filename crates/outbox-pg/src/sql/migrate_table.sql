-- Caller: migrate. The bookkeeping, laid out as sqlx has it, so that its command line can read and continue it.
CREATE TABLE {schema}._sqlx_migrations (
  version        bigint PRIMARY KEY,
  description    text NOT NULL,
  installed_on   timestamptz NOT NULL DEFAULT now(),
  success        boolean NOT NULL,
  checksum       bytea NOT NULL,
  execution_time bigint NOT NULL
)
