//! What every [`Store`] must do, as checks that run against each implementation.
//!
//! An implementation gives a [`StoreHarness`] and calls [`store_suite!`](crate::store_suite!): one named test for
//! each check. A check panics when the store breaks the contract. What a harness can't do is *not claimed*: the
//! check then prints so instead of passing silently.

pub mod ownership;
pub mod payloads;
pub mod reading;
pub mod routes;
pub mod schedules;
pub mod visibility;
pub mod write_back;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    Claimed, Confirmed, EventId, Lane, NewEvent, Ownership, Payload, ReadBatch, ReadRequest, ReadScope, Selection,
    Store,
};

/// A fresh outbox for one check. Its methods panic when they can't do their work: that is no finding about the store.
#[async_trait]
pub trait StoreHarness: Send + Sync {
    /// A new relay over the outbox: it owns nothing yet and is another one than all before it.
    async fn relay(&self) -> Arc<dyn Store>;

    /// Writes these events in one transaction, in this order, and commits it. Their identities, in order.
    async fn insert(&self, events: Vec<NewEvent>) -> Vec<EventId>;

    /// Opens a producer's transaction.
    async fn begin(&self) -> Box<dyn OpenTransaction>;

    /// Lets every lease on the route have ended a moment ago, by the database's clock.
    async fn end_leases(&self, route: &str);

    /// The committed events, in id order.
    async fn remaining(&self) -> Vec<StoredEvent>;

    /// The retry rows, in id order.
    async fn retries(&self) -> Vec<StoredRetry>;

    /// The dead letters, oldest first.
    async fn dead_letters(&self) -> Vec<StoredDeadLetter>;

    /// As an operator: lets this blocked event go again, without attempts and crashes.
    async fn unblock(&self, id: i64);

    /// As an operator: makes this waiting event due now.
    async fn make_due(&self, id: i64);

    /// As an operator: removes the retry row of this event.
    async fn clear_retry(&self, id: i64);

    /// As an operator: removes this event and nothing else; its retry row may stay behind.
    async fn delete_event(&self, id: i64);

    /// Writes and commits an event under an unused id of the caller's choice, whatever the sequence says: what
    /// producers can't do. Its identity, or `None`: not claimed.
    async fn insert_with_id(&self, id: i64, event: NewEvent) -> Option<EventId>;
}

/// A producer's transaction. Dropped, it rolls back.
#[async_trait]
pub trait OpenTransaction: Send {
    /// Writes an event, whose id is taken now, without committing.
    async fn insert(&mut self, event: NewEvent) -> EventId;

    /// Commits; what was written is visible when it returns.
    async fn commit(self: Box<Self>);

    /// Rolls back.
    async fn rollback(self: Box<Self>);
}

/// A committed event, as the table has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredEvent {
    /// Its row.
    pub id: i64,
    /// Its identity.
    pub event_id: EventId,
}

/// A retry row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRetry {
    /// The event's row.
    pub id: i64,
    /// Charged attempts.
    pub attempts: u32,
    /// Charged crashes.
    pub crashes: u32,
    /// It waits for an operator.
    pub blocked: bool,
    /// Name of the last error's kind.
    pub kind: String,
    /// The last error.
    pub error: String,
}

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDeadLetter {
    /// The event's identity.
    pub event_id: EventId,
    /// The event's payload, as it was written.
    pub payload: Payload,
    /// Charged attempts.
    pub attempts: u32,
    /// Name of the error's kind.
    pub kind: String,
    /// Why.
    pub reason: String,
}

/// Runs all checks of the store suite: expands to one `#[tokio::test]` for each, named as the check.
///
/// The argument is the path of an `async fn() -> Option<H>`, or of a function that returns such a future, with `H: StoreHarness`, called once for each check.
/// `None` means that the service is absent; the function says so itself. The calling crate needs `tokio` with
/// `macros` and `rt-multi-thread`.
///
/// ```ignore
/// mod contract {
///     outbox_testkit::store_suite!(super::setup);
/// }
/// ```
#[macro_export]
macro_rules! store_suite {
    ($setup:path) => {
        $crate::store_suite! { @tests $setup;
            visibility {
                nothing_is_visible_before_its_commit
                nothing_is_visible_after_a_rollback
                a_late_commit_is_read_next_in_order_with_its_successor
                a_transaction_open_for_long_is_read_after_its_commit
                a_late_transaction_of_several_events_is_read_whole
            }
            reading {
                events_come_in_id_order_within_the_row_limit
                batches_are_bounded_in_bytes_but_never_empty
                an_empty_outbox_reads_empty
                a_known_event_is_not_read_again
                a_dropped_event_is_read_again_by_its_key_only
                keys_are_read_exactly_and_in_pages
                a_dropped_read_is_made_again
                a_sweep_finds_nothing_when_all_is_well
                a_sweep_finds_what_reads_can_not
            }
            ownership {
                each_bucket_has_one_owner_among_many_relays
                relays_share_a_route_fairly
                a_part_that_is_given_back_is_free_and_fenced
                a_gained_bucket_is_read_from_zero
                a_take_whose_answer_was_lost_is_made_again
                a_route_is_taken_over_when_its_lease_ends
                a_renewal_extends_or_reports_the_loss
                a_released_route_is_free_at_once_and_charges_nothing
                a_stale_token_changes_nothing
                a_stale_owner_still_settles
                a_stale_owner_can_not_release
                deaths_are_counted_until_a_release_or_until_outlived
                a_stale_owner_can_not_forget_deaths
            }
            write_back {
                a_settled_event_is_gone
                settling_is_by_id_and_identity
                settling_twice_is_no_error
                a_retry_waits_for_its_delay
                a_repeated_retry_is_counted_once
                settling_removes_the_retry_row
                an_operators_change_is_seen
                a_charged_crash_waits_and_is_taken_back
                a_blocked_event_stays_until_an_operator_lets_it_go
                a_dead_letter_is_moved_with_its_reason
                a_change_of_what_is_gone_removes_the_left_over_retry_row
                a_change_is_by_id_and_identity
                many_changes_have_one_status_each
            }
            payloads {
                payloads_come_back_byte_for_byte
                a_large_payload_comes_back
                names_and_headers_come_back
                equal_aggregates_have_equal_keys
            }
            routes {
                the_first_route_that_matches_takes_an_event
                a_late_commit_is_read_by_its_own_route_in_order
                another_routes_backlog_is_passed_once
                a_read_of_keys_keeps_to_its_route
                a_sweep_keeps_to_its_route
                what_no_route_takes_is_found
                routes_have_one_owner_each
                other_routes_wait_for_the_last_owner
                other_routes_wait_for_the_end_of_leases
            }
            schedules {
                random_schedules_lose_nothing_and_keep_order
                random_schedules_of_two_routes_lose_nothing_and_keep_order
            }
        }
    };
    (@tests $setup:path; $($module:ident { $($check:ident)+ })+) => {
        $($(
            #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                if let Some(harness) = $setup().await {
                    $crate::store_suite::$module::$check(&harness).await;
                }
            }
        )+)+
    };
}

const ROUTE: &str = "suite";
/// Longer than any check: a lease ends only when the harness says so.
const LEASE: Duration = Duration::from_secs(600);

fn event(aggregate_id: &str, number: usize) -> NewEvent {
    NewEvent::new("order", aggregate_id, "order.changed", Payload::raw_json(format!("{{\"number\":{number}}}")))
}

fn forward(max_events: usize) -> ReadRequest {
    ReadRequest {
        scope: ReadScope::Forward,
        max_events,
        max_bytes: 16 * 1024 * 1024,
        forget: Vec::new(),
        dropped: Vec::new(),
    }
}

async fn own(store: &dyn Store) -> Ownership {
    try_own(store).await.expect("the route is free, and yet it was not given")
}

async fn try_own(store: &dyn Store) -> Option<Ownership> {
    store.acquire(&Selection::everything(ROUTE), LEASE).await.expect("acquire failed").owned()
}

async fn open(store: &dyn Store, ownership: &Ownership) -> Box<dyn Lane> {
    store.open_lane(ownership).await.expect("open_lane failed")
}

async fn read(lane: &mut dyn Lane, request: ReadRequest) -> ReadBatch {
    let (max_events, max_bytes) = (request.max_events, request.max_bytes);
    let batch = lane.read(request).await.expect("read failed");
    assert!(batch.events.len() <= max_events, "{} events, asked for at most {max_events}", batch.events.len());
    let ids: Vec<_> = batch.events.iter().map(|event| event.envelope.id).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "a batch must be in id order: {ids:?}");
    let before_last: usize = batch.events.iter().rev().skip(1).map(|event| event.envelope.payload.data().len()).sum();
    assert!(before_last <= max_bytes, "{before_last} bytes before the last event, asked for at most {max_bytes}");
    batch
}

/// Reads until nothing more is there.
async fn read_all(lane: &mut dyn Lane) -> Vec<Claimed> {
    let mut events = Vec::new();
    for _ in 0..1000 {
        let batch = read(lane, forward(1000)).await;
        events.extend(batch.events);
        if batch.complete {
            return events;
        }
    }
    panic!("1000 reads and still more to come: {} events", events.len());
}

fn identities(events: &[Claimed]) -> Vec<EventId> {
    events.iter().map(|event| event.envelope.event_id).collect()
}

fn confirmed(event: &Claimed) -> Confirmed {
    let envelope = &event.envelope;
    Confirmed { id: envelope.id, event_id: envelope.event_id, retried: event.retrying.is_some() }
}

async fn settle(store: &dyn Store, events: &[Claimed]) {
    let confirmed: Vec<_> = events.iter().map(confirmed).collect();
    store.settle(ROUTE, &confirmed).await.expect("settle failed");
}

/// A relay that owns the route, with a lane.
async fn reader(harness: &dyn StoreHarness) -> (Arc<dyn Store>, Ownership, Box<dyn Lane>) {
    let store = harness.relay().await;
    let ownership = own(&*store).await;
    let lane = open(&*store, &ownership).await;
    (store, ownership, lane)
}
