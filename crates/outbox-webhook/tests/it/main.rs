//! The publisher against a real HTTP server.

#![allow(clippy::unwrap_used, reason = "what tests share panics as the tests do")]

mod addresses;
mod answers;
mod bad_events;
mod client;
mod contract;
mod events;
mod logs;
mod outages;
mod receiver;
mod tls;
mod wire;
