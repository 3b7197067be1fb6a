-- Caller: migrate, when the schema is not there: IF NOT EXISTS would ask for the right to create one even if it is.
CREATE SCHEMA {schema}
