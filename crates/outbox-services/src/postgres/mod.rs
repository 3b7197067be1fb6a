//! PostgreSQL: a private server of one's own, the shared server of a test run, and a fresh database per test.
//!
//! A test of ordinary work takes a database from [`test_database`]; a test that stops or kills its server starts its
//! own with [`Postgres::start`].

mod binaries;
mod database;
mod server;
mod standby;

pub use binaries::{BIN_VARIABLE, Binaries};
pub use database::{TestDb, URL_VARIABLE, shared, test_database, test_database_or_skip};
pub use server::{Detached, Mode, Options, Postgres};
