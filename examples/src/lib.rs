//! Examples: an order service that writes events, a load of concurrent writers on it, and consumers.
//!
//! | file | shows |
//! |---|---|
//! | `src/orders.rs` | business code: an event written in the transaction of the data that it tells about |
//! | `src/bin/custom-relay.rs` | a relay of one's own, made of the parts, for any broker |
//! | `src/consumer/` | the other end: JSON lines, and a consumer for each broker, behind the feature of its name |
//! | `src/bin/demo/` | all of it together; run it with `cargo xtask demo` |

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}

pub mod consumer;
pub mod orders;
pub mod writers;
