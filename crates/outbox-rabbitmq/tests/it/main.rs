//! The publisher against a real RabbitMQ.

#![allow(clippy::unwrap_used, reason = "what tests share panics as the tests do")]

mod broker;
mod contract;
mod limits;
mod logs;
mod pressure;
mod routing;
#[cfg(feature = "tls")]
mod tls;
mod topology;
