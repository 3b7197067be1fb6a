//! Shutdown: waits, settles, gives back.

use std::sync::Arc;

use outbox_core::{ErrorKind, StoreErrorKind};
use outbox_testkit::memory::{Call, Fault, Hold, MemoryPublisher, MemoryStore, Scripted};
use tokio::time::Instant;

use crate::rig::{ROUTE, SECOND, assert_once_in_order, config, elapse, insert, run, settled};

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_the_answers_settles_and_gives_back() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_latency(3 * SECOND));
    insert(&store, (0..300).map(|n| n % 200));
    let running = run(config(), &store, &publisher);
    publisher.wait_for(200).await;
    let asked = Instant::now();
    running.stop().await;
    assert!((2 * SECOND..4 * SECOND).contains(&asked.elapsed()), "took {:?}", asked.elapsed());
    store.view(|view| {
        assert_eq!((view.settled(), view.pending()), (200, 100));
        assert_eq!(view.owner(ROUTE), None);
    });
    assert!(publisher.view(|view| view.closed()));
    let publisher = Arc::new(MemoryPublisher::new());
    let next = run(config(), &store, &publisher);
    settled(&store).await;
    assert_once_in_order(&store, &publisher, 100);
    next.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_hangs_delays_a_stop_by_the_grace_only() {
    let store = MemoryStore::new();
    let hold = Hold::new();
    let never = hold.clone();
    let publisher = MemoryPublisher::new().with_script(move |event, _| match event.id {
        1 => Scripted::hold(&never, Scripted::Confirm),
        _ => Scripted::Confirm,
    });
    let publisher = Arc::new(publisher);
    let mut config = config();
    (config.shutdown_grace, config.publish_timeout) = (4 * SECOND, 100 * SECOND);
    insert(&store, ["a", "a"]);
    let running = run(config, &store, &publisher);
    hold.reached().await;
    insert(&store, ["b"]);
    store.wait_until(|view| view.pending() == 2).await;
    let asked = Instant::now();
    running.stop().await;
    assert!((4 * SECOND..5 * SECOND).contains(&asked.elapsed()), "took {:?}", asked.elapsed());
    assert_eq!(store.view(|view| view.owner(ROUTE)), None);
    assert_eq!(publisher.view(|view| view.in_flight()), 0, "the call was dropped");
}

#[tokio::test(start_paused = true)]
async fn a_stop_without_a_database_ends_too() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new());
    let hold = Hold::new();
    store.script(Call::Settle, Fault::HoldBefore(hold.clone()));
    insert(&store, ["a"]);
    let running = run(config(), &store, &publisher);
    hold.reached().await;
    store.set_down(StoreErrorKind::Unavailable);
    let asked = Instant::now();
    running.stop().await;
    assert!(asked.elapsed() < 26 * SECOND, "took {:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_stop_before_the_route_is_owned_ends_at_once() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new());
    store.set_down(StoreErrorKind::Unavailable);
    let running = run(config(), &store, &publisher);
    running.status(|status| status.store_error.as_deref() == Some("refused by the test")).await;
    let asked = Instant::now();
    running.stop().await;
    assert!(asked.elapsed() < SECOND);
}

// An acquisition that is dropped half-way may own the route all the same.
#[tokio::test(start_paused = true)]
async fn a_stop_during_the_acquisition_gives_the_route_back() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new());
    store.script(Call::Acquire, Fault::Delay(2 * SECOND));
    let running = run(config(), &store, &publisher);
    store.wait_until(|view| view.calls(Call::Acquire) == 1).await;
    running.stop().await;
    assert_eq!(store.view(|view| view.owner(ROUTE)), None);
    assert_eq!(store.calls(Call::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn failures_during_a_stop_are_written_down() {
    let store = MemoryStore::new();
    let hold = Hold::new();
    let answer = hold.clone();
    let publisher = Arc::new(MemoryPublisher::new().with_script(move |event, _| match event.id {
        1 => Scripted::hold(&answer, Scripted::fail(ErrorKind::Failed)),
        2 => Scripted::fail(ErrorKind::Rejected),
        _ => Scripted::Confirm,
    }));
    insert(&store, ["a", "b", "c"]);
    let running = run(config(), &store, &publisher);
    hold.reached().await;
    running.ask_to_stop();
    elapse(SECOND).await;
    hold.release();
    running.stop().await;
    store.view(|view| {
        assert_eq!(view.ids(), [1]);
        assert_eq!(view.retry(1).map(|row| row.attempts), Some(1));
        assert_eq!(view.dead_letters().len(), 1);
        assert_eq!(view.owner(ROUTE), None);
    });
}
