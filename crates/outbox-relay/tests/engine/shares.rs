//! Several relays share a route: joining, leaving, dying, and answers that get lost on the way.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use async_trait::async_trait;
use outbox_core::{Capabilities, Envelope, ErrorKind, PublishError, PublishReport, Publisher, StoreErrorKind};
use outbox_testkit::memory::{Call, Fault, Hold, MemoryPublisher, MemoryStore, Scripted, StoreView};

use crate::rig::{MILLI, ROUTE, SECOND, assert_nothing_charged, config, elapse, insert, run, settled};

/// One destination for several relays: that one of them closes its way to it is nothing to the others.
#[derive(Debug)]
struct Destination(MemoryPublisher);

impl std::ops::Deref for Destination {
    type Target = MemoryPublisher;

    fn deref(&self) -> &MemoryPublisher {
        &self.0
    }
}

#[async_trait]
impl Publisher for Destination {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn topic<'a>(&'a self, event: &'a Envelope) -> Cow<'a, str> {
        self.0.topic(event)
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        self.0.publish(events).await
    }

    async fn check(&self) -> Result<(), PublishError> {
        self.0.check().await
    }

    async fn close(&self) {}
}

/// How many buckets each of these relays owns, all 64 together.
fn shares(view: &StoreView<'_>, relays: &[&MemoryStore]) -> Option<Vec<usize>> {
    let shares = view.shares(ROUTE);
    let each: Vec<usize> = relays.iter().map(|relay| shares.get(&relay.owner_id()).copied().unwrap_or(0)).collect();
    (each.iter().sum::<usize>() == 64).then_some(each)
}

fn is_fair(view: &StoreView<'_>, relays: &[&MemoryStore]) -> bool {
    let share = 64 / relays.len();
    shares(view, relays).is_some_and(|shares| shares.iter().all(|own| (share..=share + 1).contains(own)))
}

/// Relays come, go in order and die while events of many aggregates are written: each gets its share, nothing is lost,
/// each aggregate is in order, and there are no copies but after the death.
#[tokio::test(start_paused = true)]
async fn relays_that_join_and_leave_share_the_work_without_a_copy() {
    let store = MemoryStore::new();
    let publisher = Arc::new(Destination(MemoryPublisher::new().with_latency(30 * MILLI)));
    let (a, b, c) = (store.clone(), store.another_relay(), store.another_relay());
    let write = |from: usize| insert(&store, (from..from + 2_000).map(|number| number % 300));
    let relay = |store: &MemoryStore| run(config(), store, &publisher);
    write(0);
    let first = relay(&a);
    first.status(|status| status.buckets == 64).await;
    let second = relay(&b);
    write(2_000);
    store.wait_until(|view| is_fair(view, &[&a, &b])).await;
    write(4_000);
    let third = relay(&c);
    store.wait_until(|view| is_fair(view, &[&a, &b, &c])).await;
    write(6_000);
    second.stop().await;
    store.wait_until(|view| is_fair(view, &[&a, &c])).await;
    write(8_000);
    settled(&store).await;
    publisher.view(|view| {
        assert_eq!(view.inversions(), []);
        assert_eq!(
            (view.delivered().len(), view.copies()),
            (10_000, 0),
            "who joins or leaves in order makes no copies"
        );
    });
    write(10_000);
    publisher.wait_for(11_000).await;
    first.kill().await;
    store.wait_until(|view| is_fair(view, &[&c])).await;
    settled(&store).await;
    publisher.view(|view| {
        assert_eq!(view.inversions(), []);
        assert_eq!(view.delivered().len() - view.copies(), 12_000);
        assert!(view.copies() <= config().window, "{} copies", view.copies());
    });
    assert_nothing_charged(&store);
    third.stop().await;
    assert!(store.view(|view| view.shares(ROUTE).is_empty()), "all is given back");
}

/// A relay that owns nothing leaves the destination alone and is ready.
#[tokio::test(start_paused = true)]
async fn of_more_relays_than_buckets_some_stand_by() {
    let store = MemoryStore::new();
    let publisher = Arc::new(Destination(MemoryPublisher::new()));
    let stores: Vec<MemoryStore> = (0..66).map(|_| store.another_relay()).collect();
    let relays: Vec<_> = stores.iter().map(|store| run(config(), store, &publisher)).collect();
    let all: Vec<&MemoryStore> = stores.iter().collect();
    store.wait_until(|view| shares(view, &all).is_some_and(|shares| shares.iter().all(|own| *own <= 1))).await;
    insert(&store, 0..1_000);
    settled(&store).await;
    let idle: Vec<_> = relays.iter().filter(|relay| !relay.health.status().owner).collect();
    assert_eq!(idle.len(), 2);
    assert!(idle.iter().all(|relay| relay.health.status().not_ready().is_none()));
    assert_eq!(publisher.view(|view| (view.delivered().len(), view.copies())), (1_000, 0));
    // Of 66 relays each asks three times in a lease, no more.
    let renewals = || stores.iter().map(|store| store.calls(Call::Renew)).sum::<u64>();
    let before = renewals();
    elapse(60 * SECOND).await;
    let asked = renewals() - before;
    assert!(asked <= 66 * 60 / 4, "{asked} renewals in a minute");
    for relay in relays {
        relay.stop().await;
    }
}

/// An event that waits for its next attempt goes with its bucket: its attempts are kept, and its followers stay behind
/// it.
#[tokio::test(start_paused = true)]
async fn a_waiting_event_goes_with_its_bucket() {
    let store = MemoryStore::new();
    let fails = |event: &Envelope, nth| match nth {
        1 if event.id % 7 == 1 => Scripted::fail(ErrorKind::Failed),
        _ => Scripted::Confirm,
    };
    let publisher = Arc::new(Destination(MemoryPublisher::new().with_script(fails)));
    insert(&store, (0..700).map(|number| number % 70));
    let (a, b) = (store.clone(), store.another_relay());
    let first = run(config(), &a, &publisher);
    store.wait_until(|view| view.retries().len() > 5).await;
    let second = run(config(), &b, &publisher);
    store.wait_until(|view| is_fair(view, &[&a, &b])).await;
    settled(&store).await;
    publisher.view(|view| {
        assert_eq!(view.inversions(), []);
        assert_eq!((view.delivered().len(), view.copies()), (700, 0));
    });
    assert_eq!(store.view(|view| (view.retries(), view.dead_letters().len())), (Vec::new(), 0));
    first.stop().await;
    second.stop().await;
}

/// Whatever becomes of the answers of the calls that move buckets, each bucket ends up with one owner that knows it.
#[tokio::test(start_paused = true)]
async fn lost_answers_lose_no_bucket() {
    for fault in [Fault::Refuse(StoreErrorKind::Unavailable), Fault::FailAfterWork(StoreErrorKind::Unavailable)] {
        let store = MemoryStore::new();
        let publisher = Arc::new(Destination(MemoryPublisher::new().with_latency(20 * MILLI)));
        let (a, b) = (store.clone(), store.another_relay());
        for relay in [&a, &b] {
            for call in [Call::GiveBack, Call::TakeMore] {
                relay.script(call, fault.clone());
                relay.script(call, Fault::Pass);
                relay.script(call, fault.clone());
            }
        }
        insert(&store, (0..3_000).map(|number| number % 300));
        let first = run(config(), &a, &publisher);
        first.status(|status| status.owner).await;
        let second = run(config(), &b, &publisher);
        let knows = |running: &crate::rig::Running| running.health.status().buckets == 32;
        store.wait_until(|view| is_fair(view, &[&a, &b]) && knows(&first) && knows(&second)).await;
        insert(&store, (0..3_000).map(|number| number % 300));
        settled(&store).await;
        publisher.view(|view| {
            assert_eq!(view.inversions(), []);
            assert_eq!((view.delivered().len(), view.copies()), (6_000, 0), "{fault:?}");
        });
        first.stop().await;
        second.stop().await;
    }
}

/// A read that was under way while its buckets went to another relay and came back brings nothing of theirs.
#[tokio::test(start_paused = true)]
async fn rows_of_an_earlier_ownership_are_turned_away() {
    let store = MemoryStore::new();
    let publisher = Arc::new(Destination(MemoryPublisher::new()));
    let (a, b) = (store.clone(), store.another_relay());
    let first = run(config(), &a, &publisher);
    first.status(|status| status.buckets == 64 && status.not_ready().is_none()).await;
    // Its snapshot is taken; the answer comes when all is over.
    let reading = Hold::new();
    a.script(Call::Read, Fault::HoldAfter(reading.clone()));
    insert(&store, (0..500).map(|number| number % 100));
    reading.reached().await;
    let second = run(config(), &b, &publisher);
    store.wait_until(|view| is_fair(view, &[&a, &b])).await;
    let theirs = |view: &StoreView<'_>| view.settled() > 100;
    store.wait_until(theirs).await;
    second.stop().await;
    first.status(|status| status.buckets == 64).await;
    insert(&store, (0..500).map(|number| number % 100));
    reading.release();
    settled(&store).await;
    publisher.view(|view| {
        assert_eq!(view.inversions(), []);
        assert_eq!((view.delivered().len(), view.copies()), (1_000, 0));
    });
    assert_eq!(first.health.counters().late_full_sweep.load(Relaxed), 0);
    first.stop().await;
}
