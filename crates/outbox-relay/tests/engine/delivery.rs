//! The ordinary case: once, in order, with few statements.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use outbox_core::{Capabilities, ErrorKind};
use outbox_relay::Ordering;
use outbox_testkit::memory::{Call, MemoryPublisher, MemoryStore, Scripted};
use tokio::time::Instant;

use crate::rig::{MILLI, SECOND, assert_once_in_order, config, elapse, event, insert, run, settled};

#[tokio::test(start_paused = true)]
async fn ten_thousand_events_arrive_once_and_in_order() {
    for capabilities in [Capabilities::CAUTIOUS, Capabilities::CAUTIOUS.keeping_order_in_batch()] {
        let store = MemoryStore::new();
        let publisher = Arc::new(MemoryPublisher::new().with_capabilities(capabilities).with_latency(2 * MILLI));
        insert(&store, (0..5_000).map(|n| n % 100));
        let running = run(config(), &store, &publisher);
        for batch in 0..50 {
            insert(&store, (0..100).map(|n| (n * 7 + batch) % 100));
            elapse(3 * MILLI).await;
        }
        settled(&store).await;
        assert_once_in_order(&store, &publisher, 10_000);
        let overlaps = publisher.view(|view| view.overlaps());
        assert!(capabilities.keeps_order_in_batch || overlaps == 0, "{overlaps} sent beside an earlier one");
        assert_eq!(running.health.counters().published.load(Relaxed), 10_000);
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn statements_are_counted() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new());
    insert(&store, 0..1_500);
    let running = run(config(), &store, &publisher);
    settled(&store).await;
    let calls = |call| store.calls(call);
    assert_eq!([calls(Call::Acquire), calls(Call::OpenLane), calls(Call::Renew)], [1, 1, 1]);
    // Two batches fill two reads; the second one found the end.
    assert_eq!(calls(Call::Read), 2);
    assert_eq!(calls(Call::Settle), 2);
    assert_eq!([calls(Call::WriteBack), calls(Call::RetryStates), calls(Call::Sweep), calls(Call::Release)], [0; 4]);
    // The first read takes 1000, which go out at once as one call.
    assert_eq!(publisher.view(|view| view.publishes()), 2);
    assert_eq!(publisher.checks(), 1);
    running.stop().await;
    assert_eq!([store.calls(Call::Release), store.calls(Call::Renew)], [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_route_polls_and_delivers_within_one_interval() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new());
    let running = run(config(), &store, &publisher);
    elapse(10 * SECOND).await;
    let reads = store.calls(Call::Read);
    assert!((180..=230).contains(&reads), "{reads} reads in 200 intervals");
    for n in 0..20 {
        let inserted = Instant::now();
        insert(&store, [n]);
        settled(&store).await;
        assert!(inserted.elapsed() <= 60 * MILLI, "took {:?}", inserted.elapsed());
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_late_commit_arrives_before_its_successor() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new());
    let running = run(config(), &store, &publisher);
    let mut late = store.begin();
    let first = late.insert(&event("a"));
    let others = insert(&store, (0..50).map(|n| format!("b{n}")));
    settled(&store).await;
    elapse(10 * SECOND).await;
    late.commit();
    let committed = Instant::now();
    let next = insert(&store, ["a"]);
    settled(&store).await;
    assert!(committed.elapsed() < SECOND);
    assert_once_in_order(&store, &publisher, 52);
    assert_eq!(publisher.delivered_ids()[50..], [first.id, next[0].id]);
    assert!(first.id < others[0].id);
    let counters = running.health.counters();
    assert_eq!([counters.late_look_back.load(Relaxed), counters.late_full_sweep.load(Relaxed)], [1, 0]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_window_bounds_what_is_at_the_broker() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_latency(20 * MILLI));
    insert(&store, 0..500);
    let mut config = config();
    (config.window, config.batch_size) = (30, 8);
    let running = run(config, &store, &publisher);
    settled(&store).await;
    assert_eq!(publisher.view(|view| view.most_in_flight()), 30);
    assert_once_in_order(&store, &publisher, 500);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_event_larger_than_every_limit_passes_alone() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_latency(MILLI));
    insert(&store, (0..30).map(|n| n % 10));
    let mut config = config();
    (config.window_bytes, config.max_batch_bytes, config.queue_bytes) = (1, 1, 1);
    let running = run(config, &store, &publisher);
    settled(&store).await;
    assert_once_in_order(&store, &publisher, 30);
    assert_eq!(publisher.view(|view| view.most_in_flight()), 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_an_order_nothing_is_held_back() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new());
    publisher.set_script(|event, nth| match (event.id, nth) {
        (1, 1) => Scripted::fail(ErrorKind::Failed),
        _ => Scripted::Confirm,
    });
    insert(&store, ["a"; 40]);
    let mut config = config();
    (config.ordering, config.retry_initial) = (Ordering::None, 5 * SECOND);
    let running = run(config, &store, &publisher);
    let begun = Instant::now();
    publisher.wait_for(39).await;
    assert!(begun.elapsed() < SECOND);
    settled(&store).await;
    assert!(begun.elapsed() >= 5 * SECOND);
    assert_eq!(publisher.delivered_ids().last(), Some(&1));
    assert_eq!(publisher.view(|view| view.copies()), 0);
    running.stop().await;
}
