//! The publisher against a real broker, and against one that answers as told where no real one can be brought to.

#![allow(clippy::unwrap_used, reason = "what tests share panics as the tests do")]

mod answers;
mod broker;
mod contract;
mod detour;
mod limits;
mod outage;
mod tls;
mod topics;
