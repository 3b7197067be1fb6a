//! The publisher against servers that speak SQS.

#![allow(clippy::unwrap_used, reason = "what tests share panics as the tests do")]

mod answers;
mod contract;
mod events;
mod queue;
mod restart;
mod stub;
mod tls;
mod topology;
