//! NATS with JetStream: a private server of one's own, and the shared one of a test run.
//!
//! A server is one small process that starts in 0.1 s, so a test that needs its own limits, users or certificates
//! starts its own ([`Nats::start`]); the others share one ([`shared`]) with streams of their own.

mod binaries;
mod server;
mod shared;

pub use binaries::{Binary, Version, download};
pub use server::{Detached, Nats, Options, Tls};
pub use shared::{URL_VARIABLE, shared, shared_or_skip};
