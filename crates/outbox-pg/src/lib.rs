//! The transactional outbox over PostgreSQL: tables, the call that writes events, and the store that relays read.

pub mod blocked;
pub mod check;
mod config;
mod doorbell;
mod enqueue;
mod error;
mod identity;
mod matching;
mod memory;
pub mod migrate;
mod notes;
mod ownership;
mod pace;
mod reach;
mod read;
mod row;
mod sampler;
mod schema;
mod session;
mod settle;
pub mod status;
mod store;

pub use config::{MAX_CONNECTIONS, PgConfig, PgConfigError, default_connections, least_connections};
pub use doorbell::{Doorbell, DoorbellHealth};
pub use enqueue::{EnqueueError, Outbox};
pub use sampler::{Figures, LatestFigures, SAMPLE_INTERVAL, Sampler};
pub use schema::{InvalidSchemaName, MAX_SCHEMA_BYTES, SchemaName};
pub use store::PgStore;
