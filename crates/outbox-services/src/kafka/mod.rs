//! Kafka: a private broker of one's own, and the shared broker of a test run.
//!
//! No package registry carries Apache Kafka itself, so the broker is [Tansu](https://github.com/tansu-io/tansu), which
//! speaks Kafka's protocol and starts within a tenth of a second. What it does not do as Apache Kafka does: it has one
//! node, no size limit, no permissions per topic, and group joins of over 20 s (assign partitions by hand).
//!
//! It keeps its data in memory, or, when started as [`Options::durable`], in an object store in this process ([`Objects`]),
//! which outlives a killed broker.

mod binary;
mod broker;
mod objects;
mod shared;

pub use binary::{BIN_VARIABLE, find};
pub use broker::{Detached, Kafka, Options};
pub use objects::Objects;
pub use shared::{URL_VARIABLE, shared, shared_or_skip};
