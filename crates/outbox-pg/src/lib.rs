//! The transactional outbox over PostgreSQL: tables, the call that writes events, and the store that relays read.

mod enqueue;
pub mod migrate;
mod schema;

pub use enqueue::{EnqueueError, Outbox};
pub use schema::{InvalidSchemaName, MAX_SCHEMA_BYTES, SchemaName};
