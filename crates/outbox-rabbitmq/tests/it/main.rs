//! The publisher against a real RabbitMQ.

#![allow(clippy::unwrap_used, reason = "what tests share panics as the tests do")]

mod bad_events;
mod broker;
mod contract;
mod latency;
mod limits;
mod logs;
mod pressure;
mod restart;
mod routing;
#[cfg(feature = "tls")]
mod tls;
mod topology;
