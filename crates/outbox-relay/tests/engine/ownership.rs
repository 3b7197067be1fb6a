//! Two relays and one route: leases, take-over, late answers.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use async_trait::async_trait;
use outbox_core::{Capabilities, Envelope, ErrorKind, PublishError, PublishReport, Publisher, StoreErrorKind};
use outbox_testkit::memory::{Call, Fault, Hold, MemoryPublisher, MemoryStore, Scripted};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::rig::{MILLI, ROUTE, SECOND, assert_once_in_order, config, elapse, insert, run, settled};

#[tokio::test(start_paused = true)]
async fn a_lost_lease_stops_publishing_and_the_other_relay_goes_on_in_order() {
    let store = MemoryStore::new();
    let hold = Hold::new();
    let first = hold.clone();
    let publisher =
        Arc::new(MemoryPublisher::new().with_script(move |event, nth| match (event.aggregate_id.as_str(), nth) {
            ("a", 1) if event.id == 1 => Scripted::hold(&first, Scripted::Confirm),
            _ => Scripted::Confirm,
        }));
    insert(&store, ["a", "a", "a"]);
    let mut config = config();
    config.publish_timeout = 300 * SECOND;
    let old = run(config.clone(), &store, &publisher);
    hold.reached().await;
    // Its renewals would still pass; the other relay must be the first to ask. They are tried at a pace of 0.75 to 1.5 s.
    (0..20).for_each(|_| store.script(Call::Renew, Fault::Refuse(StoreErrorKind::Unavailable)));
    store.skip_time(20 * SECOND);
    let other = store.another_relay();
    let new = run(config, &other, &publisher);
    other.wait_until(|view| view.owner(ROUTE) == Some(other.owner_id())).await;
    settled(&store).await;
    old.status(|status| !status.owner || status.not_ready().is_none()).await;
    assert_eq!(publisher.delivered_ids(), [1, 2, 3]);
    let publishes = publisher.view(|view| view.publishes());
    elapse(60 * SECOND).await;
    assert_eq!(old.health.counters().lease_losses.load(Relaxed), 1);
    insert(&store, ["a", "b"]);
    settled(&store).await;
    assert_eq!(old.health.counters().published.load(Relaxed), 0);
    assert!(publisher.view(|view| view.publishes()) > publishes);
    hold.release();
    publisher.wait_for(6).await;
    publisher.view(|view| {
        assert_eq!(view.inversions(), []);
        assert_eq!(view.copies(), 1, "only what was in flight");
    });
    old.status(|status| !status.owner).await;
    old.stop().await;
    new.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_late_confirm_still_deletes_and_other_late_outcomes_change_nothing() {
    let store = MemoryStore::new();
    let hold = Hold::new();
    let first = hold.clone();
    let publisher = Arc::new(MemoryPublisher::new().with_script(move |event, nth| match (event.id, nth) {
        (1, 1) => Scripted::hold(&first, Scripted::Confirm),
        (2, 1) => Scripted::hold(&first, Scripted::fail(ErrorKind::Rejected)),
        (3, 1) => Scripted::hold(&first, Scripted::fail(ErrorKind::Failed)),
        _ => Scripted::Confirm,
    }));
    let events = insert(&store, ["a", "b", "c"]);
    let mut config = config();
    config.publish_timeout = 300 * SECOND;
    let old = run(config.clone(), &store, &publisher);
    hold.reached().await;
    let other = store.another_relay();
    let reading = Hold::new();
    other.script(Call::Read, Fault::HoldBefore(reading.clone()));
    let new = run(config, &other, &publisher);
    store.skip_time(20 * SECOND);
    reading.reached().await;
    hold.release();
    store.wait_until(|view| view.calls(Call::WriteBack) == 1 && view.settled() == 1).await;
    store.view(|view| {
        assert_eq!(view.ids(), [2, 3]);
        assert_eq!((view.retries().len(), view.dead_letters().len()), (0, 0));
    });
    reading.release();
    settled(&store).await;
    publisher.view(|view| {
        assert_eq!(events.iter().map(|event| view.times(event.event_id)).collect::<Vec<_>>(), [1, 2, 2]);
        assert_eq!((view.delivered().len(), view.copies()), (3, 0));
    });
    old.stop().await;
    new.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_during_a_long_publish() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_latency(100 * SECOND));
    insert(&store, ["a", "b"]);
    let mut config = config();
    config.publish_timeout = 300 * SECOND;
    let owner = run(config.clone(), &store, &publisher);
    publisher.wait_for(2).await;
    let other = store.another_relay();
    let sharing = run(config, &other, &publisher);
    // What is at the publisher stays where it is; the rest of the share is given away meanwhile.
    other.wait_until(|view| view.shares(ROUTE).get(&other.owner_id()) == Some(&32)).await;
    assert_eq!(store.view(|view| view.shares(ROUTE)[&store.owner_id()]), 32);
    assert_eq!(store.view(|view| view.pending()), 2);
    settled(&store).await;
    assert_once_in_order(&store, &publisher, 2);
    assert_eq!(owner.health.counters().lease_losses.load(Relaxed), 0);
    let renewals = store.calls(Call::Renew);
    assert!((90..=130).contains(&renewals), "{renewals} renewals in 100 s beside another relay");
    owner.stop().await;
    sharing.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_published_past_the_end_of_an_unrenewed_lease() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_latency(100 * MILLI));
    insert(&store, ["a"].repeat(500));
    // A lease lasts from before its renewal was asked for, however late the answer comes.
    let answer = Hold::new();
    store.script(Call::Renew, Fault::HoldAfter(answer.clone()));
    let running = run(config(), &store, &publisher);
    answer.reached().await;
    // Renewals fail while everything else works.
    for _ in 0..400 {
        store.script(Call::Renew, Fault::Refuse(StoreErrorKind::Unavailable));
    }
    elapse(10 * SECOND).await;
    answer.release();
    elapse(10 * SECOND).await;
    let stopped = publisher.view(|view| view.delivered().len());
    elapse(20 * SECOND).await;
    assert_eq!(publisher.view(|view| view.delivered().len()), stopped);
    assert!((120..=185).contains(&stopped), "{stopped} went out in the 13.5 s of the lease");
    settled(&store).await;
    assert_once_in_order(&store, &publisher, 500);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_the_next_relay_take_over_at_once() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new());
    let mut long = config();
    long.lease = 3_600 * SECOND;
    let first = run(long.clone(), &store, &publisher);
    first.status(|status| status.owner).await;
    let other = store.another_relay();
    // Closing belongs to the route that stops: the second has a publisher of its own.
    let second_publisher = Arc::new(MemoryPublisher::new());
    let second = run(long, &other, &second_publisher);
    second.status(|status| status.not_ready().is_none()).await;
    first.stop().await;
    assert!(publisher.view(|view| view.closed()));
    let stopped = Instant::now();
    second.status(|status| status.owner).await;
    assert!(stopped.elapsed() <= SECOND, "took {:?}", stopped.elapsed());
    insert(&store, ["a"]);
    settled(&store).await;
    second.stop().await;
}

/// A destination that can leave a probe without an answer.
#[derive(Debug)]
struct SlowProbe {
    inner: MemoryPublisher,
    hanging: AtomicBool,
    reached: Notify,
}

#[async_trait]
impl Publisher for SlowProbe {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn topic<'a>(&'a self, event: &'a Envelope) -> Cow<'a, str> {
        self.inner.topic(event)
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        self.inner.publish(events).await
    }

    async fn check(&self) -> Result<(), PublishError> {
        if self.hanging.load(Relaxed) {
            self.reached.notify_one();
            std::future::pending::<()>().await;
        }
        self.inner.check().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

// A probe that is under way when the route is lost must be made again by the next ownership.
#[tokio::test(start_paused = true)]
async fn a_route_lost_during_a_probe_publishes_again_later() {
    let store = MemoryStore::new();
    let (inner, reached) = (MemoryPublisher::new(), Notify::new());
    let publisher = Arc::new(SlowProbe { inner, hanging: AtomicBool::new(false), reached });
    let running = run(config(), &store, &publisher);
    running.status(|status| status.not_ready().is_none()).await;
    publisher.hanging.store(true, Relaxed);
    publisher.inner.set_down();
    insert(&store, ["a"]);
    publisher.reached.notified().await;
    // This probe never ends; all later ones do.
    publisher.hanging.store(false, Relaxed);
    publisher.inner.set_up();
    store.restart();
    let back = Instant::now();
    settled(&store).await;
    assert!(back.elapsed() < 5 * SECOND, "took {:?}", back.elapsed());
    assert_once_in_order(&store, &publisher.inner, 1);
    running.stop().await;
}
