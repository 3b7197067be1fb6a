//! The transactional outbox over PostgreSQL: tables, the call that writes events, and the store that relays read.

pub mod check;
mod config;
mod enqueue;
pub mod migrate;
mod schema;
pub mod status;

pub use config::{DEFAULT_MAX_CONNECTIONS, MAX_CONNECTIONS, PgConfig, PgConfigError};
pub use enqueue::{EnqueueError, Outbox};
pub use schema::{InvalidSchemaName, MAX_SCHEMA_BYTES, SchemaName};
