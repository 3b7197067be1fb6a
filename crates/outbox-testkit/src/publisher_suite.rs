//! What every [`Publisher`] must do, as checks that run against each implementation and its real broker.
//!
//! An implementation gives a [`PublisherHarness`] and calls [`publisher_suite!`](crate::publisher_suite!): one named
//! test for each check. A check panics when the publisher breaks the contract. A capability that is not declared has
//! its documented refusal checked; what a harness can't do is *not claimed*: the check then prints so instead of
//! passing silently. Each result is noted under the name of the package and of the module that calls the macro;
//! `cargo xtask test` makes a table of them.

pub mod delivery;
pub mod faults;
pub mod lifecycle;
mod record;
pub mod refusals;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use outbox_core::{
    Capabilities, Envelope, ErrorKind, EventId, Headers, Outcome, Payload, PublishError, Publisher, Receipt,
};
use uuid::Uuid;

#[doc(hidden)]
pub use record::recorded;
use record::{not_claimed, partly_not_claimed};

/// The aggregate type of all events of the suite.
pub const AGGREGATE_TYPE: &str = "suite";
/// The event type of all events of the suite.
pub const EVENT_TYPE: &str = "changed";

/// The longest that any single step may take: a publisher whose waits are bounded answers far sooner.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long [`PublisherHarness::impatient`] may take to give up, connecting included.
pub const IMPATIENCE: Duration = Duration::from_secs(10);

/// A fresh destination for one check. Its methods panic when they can't do their work: that is no finding about the
/// publisher.
#[async_trait]
pub trait PublisherHarness: Send + Sync {
    /// What the adapter's documentation claims.
    fn claims(&self) -> Capabilities;

    /// What the broker counts of an event beside its payload, towards the largest event of [`claims`](Self::claims).
    /// By default nothing.
    fn overhead(&self, event: &Envelope) -> usize {
        let _ = event;
        0
    }

    /// A new publisher to the destination, which takes all events of [`AGGREGATE_TYPE`] and [`EVENT_TYPE`].
    async fn publisher(&self) -> Arc<dyn Publisher>;

    /// The same with time-outs that let it give up well within [`IMPATIENCE`].
    async fn impatient(&self) -> Arc<dyn Publisher>;

    /// A publisher to a destination that does not exist. `None`: not claimed.
    async fn lost(&self) -> Option<Arc<dyn Publisher>>;

    /// Everything that has arrived since the beginning, in order, once there are at least `count`; what there is
    /// after [`PATIENCE`].
    async fn arrived(&self, count: usize) -> Vec<Arrived>;

    /// Puts a fault between all publishers and the broker; [`Fault::None`] mends it and cuts what the fault has
    /// spoilt. `false`: not claimed.
    async fn set_fault(&self, fault: Fault) -> bool;

    /// Texts that must never be shown, such as the password in the URL.
    fn secrets(&self) -> Vec<String>;
}

/// What is wrong between the publisher and its broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Live connections are cut and new ones refused.
    Refuse,
    /// Connections stay open and nothing passes in either direction.
    Blackhole,
    /// Requests arrive, their answers don't.
    CutReplies,
}

/// A message as it came out of the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// The event id, from where consumers find it.
    pub event_id: String,
    /// All headers, the event's own and those of the wire format.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: Bytes,
}

/// Runs all checks of the publisher suite: expands to one `#[tokio::test]` for each, named as the check.
///
/// The argument is the path of an `async fn() -> Option<H>`, or of a function that returns such a future, with
/// `H: PublisherHarness`, called once for each check. `None` means that the broker is absent; the function says so
/// itself. The calling crate needs `tokio` with `macros` and `rt-multi-thread`.
///
/// ```ignore
/// mod contract {
///     outbox_testkit::publisher_suite!(super::setup);
/// }
/// ```
#[macro_export]
macro_rules! publisher_suite {
    ($setup:path) => {
        $crate::publisher_suite! { @tests $setup;
            delivery {
                everything_arrives_with_its_id_bytes_and_headers
                outcomes_are_in_the_order_of_the_batch
                an_empty_batch_does_no_io
                a_batch_beyond_the_brokers_limits_is_cut
                awaited_calls_keep_order
                order_within_a_batch_is_as_declared
                a_second_copy_is_treated_as_declared
                calls_run_side_by_side
            }
            refusals {
                an_oversize_event_is_rejected_and_its_neighbours_are_sent
                an_unknown_destination_is_misconfigured
                a_system_header_wins
            }
            faults {
                a_broker_that_is_away_is_unavailable
                a_broker_that_goes_away_is_never_a_success
                a_cut_reply_is_unconfirmed
                a_broker_that_hangs_is_unconfirmed_in_time
                it_recovers_without_being_rebuilt
            }
            lifecycle {
                capabilities_are_as_claimed
                a_dropped_call_does_no_harm
                a_closed_publisher_is_unavailable
                close_flushes
                no_secret_is_shown
            }
        }
    };
    (@tests $setup:path; $($module:ident { $($check:ident)+ })+) => {
        $($(
            #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                if let Some(harness) = $setup().await {
                    let check = $crate::publisher_suite::$module::$check(&harness);
                    let (package, module) = (env!("CARGO_PKG_NAME"), module_path!());
                    $crate::publisher_suite::recorded(package, module, stringify!($check), check).await;
                }
            }
        )+)+
    };
}

/// An event with a body that tells its number.
fn event(aggregate_id: &str, number: i64) -> Envelope {
    Envelope {
        id: number,
        event_id: EventId::from_uuid(Uuid::now_v7()),
        aggregate_type: AGGREGATE_TYPE.to_owned(),
        aggregate_id: aggregate_id.to_owned(),
        event_type: EVENT_TYPE.to_owned(),
        payload: Payload::raw_json(format!("{{\"number\":{number}}}")),
        headers: Headers::new(),
        created_at: SystemTime::UNIX_EPOCH + Duration::from_micros(1_709_251_199_999_999),
    }
}

/// Events of as many aggregates.
fn events(count: i64) -> Vec<Envelope> {
    (1..=count).map(|number| event(&format!("aggregate-{number}"), number)).collect()
}

/// Gives an event a payload that makes it as large as this, by what the broker counts.
fn fill(harness: &dyn PublisherHarness, event: &mut Envelope, bytes: usize) {
    event.payload = Payload::bytes("x", "text/plain");
    let beside = harness.overhead(event);
    let payload = bytes.checked_sub(beside).expect("the largest event has room for a payload");
    event.payload = Payload::bytes(vec![b'x'; payload], "text/plain");
}

fn ids<'a>(events: impl IntoIterator<Item = &'a Envelope>) -> Vec<String> {
    events.into_iter().map(|event| event.event_id.to_string()).collect()
}

fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort_unstable();
    ids
}

fn arrived_ids(arrived: &[Arrived]) -> Vec<String> {
    arrived.iter().map(|message| message.event_id.clone()).collect()
}

/// Publishes within [`PATIENCE`].
async fn publish(publisher: &dyn Publisher, events: &[Envelope]) -> Vec<Outcome> {
    publish_within(PATIENCE, publisher, events).await
}

async fn publish_within(limit: Duration, publisher: &dyn Publisher, events: &[Envelope]) -> Vec<Outcome> {
    let report = tokio::time::timeout(limit, publisher.publish(events)).await;
    let report = report.unwrap_or_else(|_| panic!("publish took longer than {limit:?}: a wait is not bounded"));
    assert_eq!(report.len(), events.len(), "one slot for each event");
    report.into_outcomes(events.len())
}

/// Publishes and expects success for each.
async fn publish_all(publisher: &dyn Publisher, events: &[Envelope]) {
    for (index, outcome) in publish(publisher, events).await.into_iter().enumerate() {
        assert_eq!(outcome.expect("the broker is well"), Receipt::confirmed(), "event {index}");
    }
}

fn kinds(outcomes: &[Outcome]) -> Vec<Result<(), ErrorKind>> {
    outcomes.iter().map(|outcome| outcome.as_ref().map(drop).map_err(PublishError::kind)).collect()
}

#[track_caller]
fn assert_all(outcomes: &[Outcome], kind: ErrorKind) {
    for (index, outcome) in outcomes.iter().enumerate() {
        let found = outcome.as_ref().map_err(PublishError::kind);
        assert_eq!(found, Err(kind), "event {index}: {outcome:?}");
    }
}

/// Publishes an event again and again until it is confirmed, as a relay does, and expects that within [`PATIENCE`].
async fn publish_until_confirmed(publisher: &dyn Publisher, event: &Envelope) {
    let batch = std::slice::from_ref(event);
    let again = async {
        loop {
            let outcome = publish(publisher, batch).await.remove(0);
            match outcome {
                Ok(_) => return,
                Err(error) => assert!(is_passing(&error), "neither success nor a passing trouble: {}", error.report()),
            }
            // A relay probes before it sends again; here it also keeps the loop from spinning.
            let _ = publisher.check().await;
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, again).await;
    assert!(in_time.is_ok(), "not confirmed within {PATIENCE:?} after the fault was mended");
}

fn is_passing(error: &PublishError) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Throttled | ErrorKind::Unconfirmed)
}
