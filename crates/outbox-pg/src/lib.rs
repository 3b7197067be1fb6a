//! The transactional outbox over PostgreSQL: tables, the call that writes events, and the store that relays read.

mod schema;

pub use schema::{InvalidSchemaName, MAX_SCHEMA_BYTES, SchemaName};
