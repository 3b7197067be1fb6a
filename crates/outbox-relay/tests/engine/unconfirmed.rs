//! Answers that are lost: sent again under the same id, and the event that cuts the connection is found.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use async_trait::async_trait;
use outbox_core::{Capabilities, Envelope, ErrorKind, PublishError, PublishReport, Publisher};
use outbox_testkit::memory::{Hold, MemoryPublisher, MemoryStore, Scripted};
use tokio::time::Instant;

use crate::rig::{MILLI, SECOND, assert_nothing_charged, config, elapse, insert, run, settled};

#[tokio::test(start_paused = true)]
async fn a_lost_answer_sends_the_same_id_again_and_charges_nothing() {
    for scripted in [Scripted::deliver_and_fail(ErrorKind::Unconfirmed), Scripted::DeliverAndForget] {
        let store = MemoryStore::new();
        let publisher = Arc::new(MemoryPublisher::new().with_script(move |_, nth| match nth {
            1 => scripted.clone(),
            _ => Scripted::Confirm,
        }));
        let events = insert(&store, (0..40).map(|n| n % 20));
        let running = run(config(), &store, &publisher);
        settled(&store).await;
        publisher.view(|view| {
            assert_eq!(view.inversions(), []);
            assert_eq!((view.delivered().len(), view.copies()), (80, 40));
            assert!(events.iter().all(|event| view.times(event.event_id) == 2));
        });
        assert_nothing_charged(&store);
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_returns_counts_as_unconfirmed() {
    let store = MemoryStore::new();
    let hold = Hold::new();
    let never = hold.clone();
    let publisher = Arc::new(MemoryPublisher::new().with_script(move |event, nth| match (event.id, nth) {
        (1, 1) => Scripted::hold(&never, Scripted::Confirm),
        _ => Scripted::Confirm,
    }));
    let events = insert(&store, ["a", "a"]);
    let mut config = config();
    config.publish_timeout = 5 * SECOND;
    let running = run(config, &store, &publisher);
    let begun = Instant::now();
    settled(&store).await;
    assert!((5 * SECOND..7 * SECOND).contains(&begun.elapsed()), "took {:?}", begun.elapsed());
    assert_eq!(publisher.delivered_ids(), [1, 2]);
    assert_eq!(publisher.view(|view| view.times(events[0].event_id)), 2);
    assert_nothing_charged(&store);
    running.stop().await;
}

/// A broker that cuts the connection when it sees a certain aggregate: what came before it in the call has arrived,
/// and no answer comes.
#[derive(Debug)]
struct Cutting {
    inner: MemoryPublisher,
    poison: &'static str,
    cuts: AtomicUsize,
}

#[async_trait]
impl Publisher for Cutting {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn topic<'a>(&'a self, event: &'a Envelope) -> Cow<'a, str> {
        self.inner.topic(event)
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        let Some(cut) = events.iter().position(|event| event.aggregate_id == self.poison) else {
            return self.inner.publish(events).await;
        };
        self.cuts.fetch_add(1, Relaxed);
        let _ = self.inner.publish(&events[..cut]).await; // its answer is lost
        let lost = PublishError::new(ErrorKind::Unconfirmed, "the connection was cut");
        PublishReport::all_failed(events.len(), &lost)
    }

    async fn check(&self) -> Result<(), PublishError> {
        self.inner.check().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_event_that_cuts_the_connection_is_isolated_and_dies() {
    let store = MemoryStore::new();
    let publisher =
        Arc::new(Cutting { inner: MemoryPublisher::new().with_latency(MILLI), poison: "7", cuts: AtomicUsize::new(0) });
    insert(&store, (0..30).map(|n| n % 10));
    let mut config = config();
    (config.max_attempts, config.retry_initial, config.retry_max) = (3, 200 * MILLI, 400 * MILLI);
    let running = run(config, &store, &publisher);
    let begun = Instant::now();
    store.wait_until(|view| view.pending() == 3).await;
    assert!(begun.elapsed() < 5 * SECOND, "the neighbours waited {:?}", begun.elapsed());
    let copies = publisher.inner.view(|view| view.copies());
    assert!(copies <= 30, "{copies} copies of neighbours");
    settled(&store).await;
    store.view(|view| {
        let dead: Vec<_> = view.dead_letters().iter().map(|dead| (dead.attempts, dead.kind.as_str())).collect();
        assert_eq!(dead, [(3, "unconfirmed"); 3]);
        assert!(view.dead_letters().iter().all(|dead| dead.envelope.aggregate_id == "7"));
    });
    assert_eq!(publisher.inner.view(|view| view.copies()), copies);
    let cuts = publisher.cuts.load(Relaxed);
    assert_eq!(cuts, 3 * (2 + 3), "two cuts make it a suspect, then each attempt is one: once found it goes alone");
    assert_eq!(publisher.inner.view(|view| view.inversions()), []);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lone_event_is_not_charged_while_the_broker_is_away() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|_, _| Scripted::fail(ErrorKind::Unconfirmed)));
    insert(&store, ["a"]);
    let running = run(config(), &store, &publisher);
    publisher.wait_until(|view| view.publishes() == 2).await;
    publisher.set_down();
    elapse(120 * SECOND).await;
    assert_nothing_charged(&store);
    publisher.set_script(|_, _| Scripted::Confirm);
    publisher.set_up();
    settled(&store).await;
    assert_nothing_charged(&store);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn two_thousand_suspects_drain_quickly_beside_new_events() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_latency(MILLI));
    let away = Arc::new(AtomicBool::new(true));
    let lost = Arc::clone(&away);
    publisher.set_script(
        move |_, _| {
            if lost.load(Relaxed) { Scripted::fail(ErrorKind::Unconfirmed) } else { Scripted::Confirm }
        },
    );
    let events = insert(&store, 0..2_000);
    let running = run(config(), &store, &publisher);
    publisher.wait_until(|view| events.iter().all(|event| view.times(event.event_id) >= 2)).await;
    away.store(false, Relaxed);
    let back = Instant::now();
    let mut new = 0;
    while store.view(|view| view.pending() > 0) {
        insert(&store, 10_000 + new..10_020 + new);
        new += 20;
        elapse(100 * MILLI).await;
        assert!(back.elapsed() < 30 * SECOND, "{} are left", store.view(|view| view.pending()));
        if new >= 400 {
            break;
        }
    }
    settled(&store).await;
    assert!(back.elapsed() < 20 * SECOND, "took {:?}", back.elapsed());
    let arrived = usize::try_from(2_000 + new).unwrap();
    publisher.view(|view| assert_eq!((view.delivered().len(), view.copies()), (arrived, 0)));
    // At most the first one sent alone, whose answer may have been lost just before the broker's return.
    assert!(running.health.counters().failed.load(Relaxed) <= 1);
    running.stop().await;
}
