//! A loop that is stuck can be told from one that waits, a panic of the publisher's pure parts ends nothing, and a
//! stop gives the route back wherever it comes.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use async_trait::async_trait;
use outbox_core::{Capabilities, Envelope, ErrorKind, PublishError, PublishReport, Publisher, StoreErrorKind};
use outbox_relay::Relay;
use outbox_testkit::memory::{Call, Fault, Hold, MemoryPublisher, MemoryStore, Scripted};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::rig::{SECOND, config, elapse, insert, run, settled};

#[tokio::test(start_paused = true)]
async fn idle_hanging_and_failing_routes_are_not_stuck() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|event, _| match event.aggregate_id.as_str() {
        "waits" => Scripted::fail(ErrorKind::Failed),
        _ => Scripted::Confirm,
    }));
    let mut config = config();
    (config.retry_initial, config.retry_max) = (3600 * SECOND, 3600 * SECOND);
    config.poll_interval = 3600 * SECOND;
    insert(&store, ["waits"]);
    let running = run(config, &store, &publisher);
    let never_stuck = async |what: &str| {
        let turns = running.health.turns();
        for _ in 0..60 {
            elapse(SECOND).await;
            assert!(!running.health.is_stuck(5 * SECOND), "{what}");
        }
        let turns = running.health.turns() - turns;
        assert!((20..1_000).contains(&turns), "{what}: {turns} turns in a minute");
    };
    running.status(|status| status.not_ready().is_none()).await;
    never_stuck("idle").await;
    let hangs = Hold::new();
    for call in [Call::Renew, Call::RetryStates] {
        store.script(call, Fault::HoldBefore(hangs.clone()));
    }
    never_stuck("calls of the store that hang").await;
    hangs.release();
    publisher.set_down();
    store.set_down(StoreErrorKind::Unavailable);
    never_stuck("two outages").await;
    store.set_up();
    publisher.set_up();
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_does_not_turn_is_stuck_until_it_turns() {
    let store = MemoryStore::new();
    let hangs = Hold::new();
    store.script(Call::Acquire, Fault::HoldBefore(hangs.clone()));
    let running = run(config(), &store, &Arc::new(MemoryPublisher::new()));
    hangs.reached().await;
    elapse(29 * SECOND).await;
    assert!(!running.health.is_stuck(30 * SECOND));
    elapse(2 * SECOND).await;
    assert!(running.health.is_stuck(30 * SECOND));
    hangs.release();
    running.status(|status| status.owner).await;
    assert!(!running.health.is_stuck(30 * SECOND));
    let health = running.health.clone();
    running.stop().await;
    elapse(60 * SECOND).await;
    assert!(!health.is_stuck(30 * SECOND), "one that has ended is not stuck");
}

/// Panics when asked for the topic of one aggregate.
#[derive(Debug)]
struct NoTopic(MemoryPublisher);

#[async_trait]
impl Publisher for NoTopic {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn topic<'a>(&'a self, event: &'a Envelope) -> Cow<'a, str> {
        assert_ne!(event.aggregate_id, "bad", "no topic for this one");
        self.0.topic(event)
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        self.0.publish(events).await
    }

    async fn check(&self) -> Result<(), PublishError> {
        self.0.check().await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_over_a_topic_is_charged_to_its_event() {
    let store = MemoryStore::new();
    let publisher = MemoryPublisher::new().with_script(|event, nth| match (event.aggregate_id.as_str(), nth) {
        // Another topic of the destination is paused all the while, so that topics are asked for.
        ("bad", _) | ("other", ..100) => {
            Scripted::Fail(PublishError::new(ErrorKind::Misconfigured, "no exchange").with_topic("order"))
        }
        _ => Scripted::Confirm,
    });
    let publisher = Arc::new(NoTopic(publisher.with_topic(|event| match event.aggregate_id.as_str() {
        "other" => "order".to_owned(),
        other => other.to_owned(),
    })));
    insert(&store, ["other", "bad", "good", "good"]);
    let mut config = config();
    (config.max_attempts, config.retry_max) = (3, 2 * SECOND);
    let running = run(config, &store, &publisher);
    store.wait_until(|view| view.dead_letters().len() == 1).await;
    store.view(|view| {
        let letter = &view.dead_letters()[0];
        assert_eq!(
            (letter.envelope.aggregate_id.as_str(), letter.kind.as_str(), letter.attempts),
            ("bad", "failed", 3)
        );
        assert!(letter.reason.contains("no topic for this one"), "{}", letter.reason);
    });
    settled(&store).await;
    assert_eq!(publisher.0.delivered_ids(), [3, 4, 1]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_gives_the_route_back_also_between_two_sessions() {
    // While no lane can be opened, and while a restart of the database is looked into.
    for restarted in [false, true] {
        let store = MemoryStore::new();
        let publisher = Arc::new(MemoryPublisher::new());
        let refuse = || Fault::Refuse(StoreErrorKind::Unavailable);
        if !restarted {
            (0..1_000).for_each(|_| store.script(Call::OpenLane, refuse()));
        }
        let running = run(config(), &store, &publisher);
        if restarted {
            running.status(|status| status.not_ready().is_none()).await;
            store.script(Call::Release, refuse());
            store.restart();
            store.wait_until(|view| view.calls(Call::Release) == 1).await;
        } else {
            store.wait_until(|view| view.calls(Call::OpenLane) > 2).await;
        }
        running.stop().await;
        assert_eq!(store.calls(Call::Release), 1 + u64::from(restarted), "restarted: {restarted}");
        let next = run(config(), &store.another_relay(), &Arc::new(MemoryPublisher::new()));
        let asked = Instant::now();
        next.status(|status| status.owner).await;
        assert!(asked.elapsed() < SECOND, "restarted: {restarted}: {:?}", asked.elapsed());
        next.stop().await;
    }
}

// M9: an operator's change is seen within a minute, however far the retry lies ahead.
#[tokio::test(start_paused = true)]
async fn an_evicted_event_whose_retry_is_far_is_looked_at_each_minute() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|_, nth| match nth {
        1 => Scripted::fail(ErrorKind::Failed),
        _ => Scripted::Confirm,
    }));
    let events = insert(&store, 0..20);
    let mut config = config();
    (config.retry_initial, config.retry_max) = (24 * 3600 * SECOND, 24 * 3600 * SECOND);
    config.queue_events = 4;
    let running = run(config, &store, &publisher);
    store.wait_until(|view| view.retries().len() == 20).await;
    elapse(SECOND).await;
    let reads = store.calls(Call::Read);
    for event in &events {
        assert!(store.make_due(event.id));
    }
    elapse(70 * SECOND).await;
    assert_eq!(store.view(|view| view.pending()), 0);
    let polls = 70 * 20;
    assert!(store.calls(Call::Read) - reads < polls + 50, "not read over and over");
    running.stop().await;
}

/// Where a publisher panics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spot {
    Capabilities,
    Check,
    Close,
}

#[derive(Debug)]
struct PanicsAt(Spot, MemoryPublisher, AtomicU64);

impl PanicsAt {
    fn pass(&self, spot: Spot) {
        assert_ne!(self.0, spot, "as the test says");
    }
}

#[async_trait]
impl Publisher for PanicsAt {
    fn capabilities(&self) -> Capabilities {
        self.pass(Spot::Capabilities);
        self.1.capabilities()
    }

    fn topic<'a>(&'a self, event: &'a Envelope) -> Cow<'a, str> {
        self.1.topic(event)
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        self.1.publish(events).await
    }

    async fn check(&self) -> Result<(), PublishError> {
        // The first ten; then it works.
        if self.2.fetch_add(1, Relaxed) < 10 {
            self.pass(Spot::Check);
        }
        self.1.check().await
    }

    async fn close(&self) {
        self.pass(Spot::Close);
        self.1.close().await;
    }
}

/// An error or an outage, never a relay that lives and does nothing.
#[tokio::test(start_paused = true)]
async fn a_panic_of_capabilities_check_or_close_is_no_hang() {
    for spot in [Spot::Capabilities, Spot::Check, Spot::Close] {
        let store = MemoryStore::new();
        let publisher = Arc::new(PanicsAt(spot, MemoryPublisher::new(), AtomicU64::new(0)));
        insert(&store, (0..20).map(|n| n % 5));
        let relay = Relay::builder(Arc::new(store.clone()))
            .route(config(), Arc::clone(&publisher) as Arc<dyn Publisher>)
            .build()
            .expect("a valid config");
        let (health, shutdown) = (relay.health(), CancellationToken::new());
        let running = tokio::spawn(relay.run(shutdown.clone()));
        if spot == Spot::Check {
            let told = |reason: Option<String>| reason.is_some_and(|reason| reason.contains("check panicked"));
            let mut watch = health.routes()[0].watch();
            watch.wait_for(|status| told(status.not_ready())).await.expect("the route runs");
        }
        if spot != Spot::Capabilities {
            settled(&store).await;
            shutdown.cancel();
        }
        let ended = tokio::time::timeout(60 * SECOND, running).await.expect("it ends").expect("the panic is caught");
        assert_eq!(ended.is_err(), spot != Spot::Check, "{spot:?}: {ended:?}");
        if let Err(error) = ended {
            assert!(error.to_string().contains("as the test says"), "{error}");
        }
        store.view(|view| {
            assert_eq!((view.retries(), view.dead_letters().len()), (vec![], 0), "{spot:?}");
            // What a panicking close comes after is done: settled and given back.
            if spot == Spot::Close {
                assert_eq!((view.pending(), view.owner(crate::rig::ROUTE)), (0, None));
            }
        });
    }
}
