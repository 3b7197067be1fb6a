//! The transactional outbox over PostgreSQL: tables, the call that writes events, and the store that relays read.

pub mod check;
mod config;
mod enqueue;
mod error;
mod identity;
mod memory;
pub mod migrate;
mod notes;
mod ownership;
mod pace;
mod read;
mod row;
mod schema;
mod session;
mod settle;
pub mod status;
mod store;

pub use config::{DEFAULT_MAX_CONNECTIONS, MAX_CONNECTIONS, PgConfig, PgConfigError};
pub use enqueue::{EnqueueError, Outbox};
pub use schema::{InvalidSchemaName, MAX_SCHEMA_BYTES, SchemaName};
pub use store::PgStore;
