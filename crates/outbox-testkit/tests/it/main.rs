//! Tests of the test kit itself.

#![allow(clippy::unwrap_used, reason = "what tests share panics as the tests do")]

mod memory_faults;
mod memory_publisher;
mod memory_store;
mod publisher_contract;
