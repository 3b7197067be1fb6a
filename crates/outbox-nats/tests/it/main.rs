//! The publisher against real servers.

#![allow(clippy::unwrap_used, reason = "what tests share panics as the tests do")]

mod contract;
mod credentials;
mod limits;
mod outages;
mod permissions;
mod server;
mod streams;
mod tls;
