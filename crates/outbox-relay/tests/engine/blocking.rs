//! `on_dead = "block"`: what is given up keeps its place, and its aggregate waits for an operator.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use outbox_core::ErrorKind;
use outbox_relay::{OnDead, Ordering, RouteConfig};
use outbox_testkit::memory::{MemoryPublisher, MemoryStore, Scripted};
use tokio::time::Instant;

use crate::rig::{MILLI, ROUTE, SECOND, assert_nothing_charged, config, elapse, event, insert, run, settled};

fn blocking() -> RouteConfig {
    let mut config = config();
    (config.on_dead, config.max_attempts, config.retry_max) = (OnDead::Block, 2, SECOND);
    config
}

/// Events of these aggregates fail each time.
fn failing(aggregates: &'static [&'static str], kind: ErrorKind) -> Arc<MemoryPublisher> {
    let script = move |event: &outbox_core::Envelope, _| match aggregates.contains(&event.aggregate_id.as_str()) {
        true => Scripted::fail(kind),
        false => Scripted::Confirm,
    };
    Arc::new(MemoryPublisher::new().with_script(script))
}

#[tokio::test(start_paused = true)]
async fn an_event_after_its_last_attempt_keeps_its_place_and_only_its_aggregate_waits() {
    for kind in [ErrorKind::Failed, ErrorKind::Rejected] {
        let store = MemoryStore::new();
        let publisher = failing(&["bad"], kind);
        insert(&store, ["bad", "bad", "a", "b"]);
        let running = run(blocking(), &store, &publisher);
        store.wait_until(|view| view.retry(1).is_some_and(|row| row.blocked)).await;
        insert(&store, ["a", "bad"]);
        publisher.wait_for(3).await;
        elapse(3600 * SECOND).await;
        assert_eq!(publisher.delivered_ids(), [3, 4, 5]);
        store.view(|view| {
            let row = view.retry(1).unwrap();
            let attempts = if kind == ErrorKind::Failed { 2 } else { 0 };
            assert_eq!((row.attempts, row.crashes, row.kind.as_str()), (attempts, 0, kind.as_str()));
            assert_eq!((view.retries().len(), view.dead_letters().len(), view.pending()), (1, 0, 3));
        });
        let (counters, gauges) = (running.health.counters(), running.health.gauges());
        assert_eq!((counters.blocked.load(Relaxed), counters.dead_letters.load(Relaxed)), (1, 0));
        assert_eq!(gauges.blocked.load(Relaxed), 1);

        publisher.set_script(|_, _| Scripted::Confirm);
        let changed = Instant::now();
        assert!(store.unblock(1));
        settled(&store).await;
        assert!(changed.elapsed() <= 200 * MILLI, "seen after {:?}, the poll interval is 50 ms", changed.elapsed());
        assert_eq!(publisher.delivered_ids(), [3, 4, 5, 1, 2, 6]);
        assert_nothing_charged(&store);
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_blocked_also_after_a_restart_and_a_take_over() {
    let store = MemoryStore::new();
    let publisher = failing(&["bad"], ErrorKind::Rejected);
    insert(&store, ["bad", "bad", "a"]);
    let running = run(blocking(), &store, &publisher);
    store.wait_until(|view| view.retry(1).is_some_and(|row| row.blocked) && view.pending() == 2).await;
    running.kill().await;
    store.end_leases(ROUTE);
    let (second, other) = (store.another_relay(), Arc::new(MemoryPublisher::new()));
    let running = run(blocking(), &second, &other);
    insert(&store, ["b", "bad"]);
    other.wait_for(1).await;
    store.restart();
    insert(&store, ["c"]);
    other.wait_for(2).await;
    elapse(60 * SECOND).await;
    assert_eq!(other.delivered_ids(), [4, 6]);
    // An operator skips it: the row is gone from the table.
    let changed = Instant::now();
    assert!(store.delete_event(1));
    settled(&store).await;
    assert!(changed.elapsed() <= SECOND, "seen after {:?}", changed.elapsed());
    assert_eq!(other.delivered_ids(), [4, 6, 2, 5]);
    store.wait_until(|view| view.retries().is_empty()).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_an_order_only_the_event_itself_waits() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|event, nth| match (event.id, nth) {
        (1, _) => Scripted::fail(ErrorKind::Failed),
        (2, 1) => Scripted::fail(ErrorKind::Failed),
        _ => Scripted::Confirm,
    }));
    insert(&store, ["a", "a", "a"]);
    let mut config = blocking();
    config.ordering = Ordering::None;
    let running = run(config, &store, &publisher);
    store.wait_until(|view| view.retry(1).is_some_and(|row| row.blocked) && view.pending() == 1).await;
    assert_eq!(publisher.delivered_ids(), [3, 2]);
    publisher.set_script(|_, _| Scripted::Confirm);
    assert!(store.unblock(1));
    settled(&store).await;
    running.stop().await;
    assert_nothing_charged(&store);
}

// Whatever waits, memory is bounded; what gave up its place there is let go as soon as any other.
#[tokio::test(start_paused = true)]
async fn very_many_blocked_aggregates_fit_and_are_let_go_in_order() {
    for ordering in [Ordering::Aggregate, Ordering::None] {
        let store = MemoryStore::new();
        let publisher = Arc::new(MemoryPublisher::new().with_script(|event, _| match event.aggregate_id.len() {
            1..4 => Scripted::fail(ErrorKind::Rejected),
            _ => Scripted::Confirm,
        }));
        insert(&store, 0..100);
        insert(&store, (0..200).map(|n| n % 100));
        let mut config = blocking();
        (config.ordering, config.queue_events) = (ordering, 20);
        let running = run(config, &store, &publisher);
        let blocked = if ordering == Ordering::Aggregate { 100 } else { 300 };
        store.wait_until(|view| view.retries().iter().filter(|row| row.blocked).count() == blocked).await;
        insert(&store, ["good!"]);
        publisher.wait_for(1).await;
        elapse(5 * SECOND).await;
        let gauges = running.health.gauges();
        assert!(gauges.waiting.load(Relaxed) <= 20, "{} in memory", gauges.waiting.load(Relaxed));
        assert!(gauges.spilled_aggregates.load(Relaxed) >= 80);
        assert_eq!(gauges.blocked.load(Relaxed), blocked as u64);

        publisher.set_script(|_, _| Scripted::Confirm);
        let changed = Instant::now();
        let ids = store.view(|view| view.retries().iter().map(|row| row.id).collect::<Vec<_>>());
        assert!(ids.into_iter().all(|id| store.unblock(id)));
        settled(&store).await;
        assert!(changed.elapsed() <= 10 * SECOND, "gone after {:?}", changed.elapsed());
        publisher.view(|view| {
            assert_eq!((view.delivered().len(), view.copies()), (301, 0));
            assert!(ordering == Ordering::None || view.inversions().is_empty());
        });
        running.stop().await;
        assert_nothing_charged(&store);
    }
}

// With `continue` the same row is a dead letter, and blocked ones of before stay blocked.
#[tokio::test(start_paused = true)]
async fn a_route_that_no_longer_blocks_leaves_what_is_blocked() {
    let store = MemoryStore::new();
    let publisher = failing(&["bad"], ErrorKind::Rejected);
    insert(&store, ["bad"]);
    let running = run(blocking(), &store, &publisher);
    store.wait_until(|view| view.retry(1).is_some_and(|row| row.blocked)).await;
    running.kill().await;
    let mut config = blocking();
    config.on_dead = OnDead::Continue;
    let publisher = failing(&["worse"], ErrorKind::Rejected);
    let running = run(config, &store, &publisher);
    store.insert(&event("worse"));
    store.wait_until(|view| view.dead_letters().len() == 1).await;
    elapse(60 * SECOND).await;
    assert_eq!((store.view(|view| view.ids()), publisher.delivered_ids()), (vec![1], vec![]));
    running.stop().await;
}
