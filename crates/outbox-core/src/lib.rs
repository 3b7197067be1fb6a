//! The vocabulary of the transactional outbox.
//!
//! A service writes an [`Event`] in the same transaction as its data. A [`Store`] hands the committed events to a
//! relay as [`Envelope`]s, and a [`Publisher`] brings them to a broker. This crate holds these words and contracts
//! and nothing else: no runtime, no driver, no clock, no environment and no file.
//!
//! | You write | start with |
//! |---|---|
//! | business code that emits events | [`Event`], [`NewEvent`] |
//! | an adapter for a broker | [`Publisher`], [`PublishReport`], [`ErrorKind`] |
//! | a store over another database | [`Store`], [`Lane`] |

mod buckets;
mod envelope;
mod error;
mod event;
mod ownership;
mod percent;
mod publisher;
mod routes;
mod store;
mod timestamp;
mod topic;
pub mod units;
pub mod wire;

pub use buckets::{Buckets, fair_share};
pub use envelope::Envelope;
pub use error::{ErrorKind, PublishError};
pub use event::{
    Event, EventId, Headers, InvalidEvent, MAX_CONTENT_TYPE_BYTES, MAX_NAME_BYTES, NewEvent, Payload, PayloadError,
};
pub use ownership::{Acquisition, Ownership, Renewal, Standing};
pub use percent::is_percent_encoded;
pub use publisher::{Capabilities, Outcome, PublishReport, Publisher, Receipt};
pub use routes::{Filter, InvalidPattern, InvalidRoutes, MAX_PATTERNS, MAX_ROUTES, Pattern, Routes, Selection};
pub use store::{
    Activity, Change, Claimed, Confirmed, Lane, ReadBatch, ReadRequest, ReadScope, RetryState, Retrying, Store,
    StoreError, StoreErrorKind, SweepPage, WakeCause, Wakeup, WriteBack, WriteBackStatus,
};
pub use timestamp::rfc3339_micros;
pub use topic::{TopicError, TopicSyntax, TopicTemplate};
