//! Stuck aggregates with more behind them than memory may hold.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use outbox_core::{ErrorKind, Payload, PublishError};
use outbox_relay::Ordering;
use outbox_testkit::memory::{Call, MemoryPublisher, MemoryStore, Scripted};
use tokio::time::Instant;

use crate::rig::{MILLI, SECOND, assert_once_in_order, config, elapse, event, insert, run, settled};

// B09: a blocked key must not starve the others, nor cost more the deeper it is.
#[tokio::test(start_paused = true)]
async fn a_deep_stuck_aggregate_starves_nobody() {
    const DEEP: usize = 5_000;
    let store = MemoryStore::new();
    let mended = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&mended);
    let publisher = Arc::new(MemoryPublisher::new().with_script(move |event, _| {
        let broken = event.aggregate_id == "a" && !fails.load(Relaxed);
        if broken { Scripted::fail(ErrorKind::Failed) } else { Scripted::Confirm }
    }));
    insert(&store, ["a"].repeat(DEEP));
    insert(&store, (0..2_000).map(|n| n % 200));
    let mut config = config();
    (config.max_attempts, config.retry_initial, config.retry_max) = (1_000, 5 * SECOND, 10 * SECOND);
    let poll = config.poll_interval;
    let running = run(config, &store, &publisher);
    let begun = Instant::now();
    publisher.wait_for(2_000).await;
    assert!(begun.elapsed() < SECOND, "the others waited {:?}", begun.elapsed());
    elapse(60 * SECOND).await;
    let inserted = Instant::now();
    insert(&store, ["z"]);
    publisher.wait_for(2_001).await;
    assert!(inserted.elapsed() < 2 * poll, "z waited {:?}", inserted.elapsed());
    let (gauges, spilled) = (running.health.gauges(), &running.health.counters().spilled);
    assert!(gauges.waiting.load(Relaxed) <= 64 && gauges.spilled_aggregates.load(Relaxed) == 1);
    assert!(spilled.load(Relaxed) < 5_500, "a stuck aggregate is not read over and over: {spilled:?}");

    let (reads, healed) = (store.calls(Call::Read), Instant::now());
    mended.store(true, Relaxed);
    settled(&store).await;
    assert_once_in_order(&store, &publisher, DEEP + 2_001);
    let reads = store.calls(Call::Read) - reads;
    let polls = u64::try_from(healed.elapsed().as_millis() / 40).unwrap();
    assert!(reads <= polls + 250, "48 events a read: {reads} reads, {polls} of them polls");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn waiting_events_keep_to_their_budget() {
    for ordering in [Ordering::Aggregate, Ordering::None] {
        let store = MemoryStore::new();
        let mended = Arc::new(AtomicBool::new(false));
        let fails = Arc::clone(&mended);
        let publisher = Arc::new(MemoryPublisher::new().with_script(move |_, _| {
            if fails.load(Relaxed) { Scripted::Confirm } else { Scripted::fail(ErrorKind::Failed) }
        }));
        insert(&store, (0..400).map(|n| n % 50));
        let mut config = config();
        (config.ordering, config.queue_events, config.max_attempts) = (ordering, 10, 1_000);
        config.retry_max = 20 * SECOND;
        config.full_sweep_interval = SECOND;
        let running = run(config, &store, &publisher);
        for _ in 0..100 {
            elapse(300 * MILLI).await;
            let waiting = running.health.gauges().waiting.load(Relaxed);
            assert!(waiting <= 10, "{waiting} events wait in memory");
        }
        assert!(running.health.counters().spilled.load(Relaxed) >= 300);
        let reads = store.calls(Call::Read);
        assert!(reads < 5_000, "{reads} reads in 30 s");
        mended.store(true, Relaxed);
        settled(&store).await;
        publisher.view(|view| {
            assert_eq!((view.delivered().len(), view.copies()), (400, 0));
            assert!(ordering == Ordering::None || view.inversions().is_empty());
        });
        assert_eq!(running.health.counters().late_full_sweep.load(Relaxed), 0);
        assert_eq!(running.health.gauges().spilled_aggregates.load(Relaxed), 0);
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_topic_with_a_backlog_is_not_read_over_and_over() {
    let store = MemoryStore::new();
    let mended = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&mended);
    let publisher = Arc::new(MemoryPublisher::new().with_script(move |event, _| {
        if event.aggregate_type == "order" || fails.load(Relaxed) {
            return Scripted::Confirm;
        }
        Scripted::Fail(PublishError::new(ErrorKind::Misconfigured, "no exchange").with_topic("invoice"))
    }));
    for n in 0..3_000 {
        let invoice = outbox_core::NewEvent::new("invoice", n.to_string(), "sent", Payload::raw_json("{}"));
        store.insert(&invoice);
    }
    let mut config = config();
    config.queue_events = 100;
    let running = run(config, &store, &publisher);
    elapse(SECOND).await;
    let (spilled, begun) = (running.health.counters().spilled.load(Relaxed), Instant::now());
    while begun.elapsed() < 50 * SECOND {
        store.insert(&event("o"));
        elapse(SECOND).await;
    }
    let again = running.health.counters().spilled.load(Relaxed) - spilled;
    assert_eq!(again, 0, "events of the paused topic were read again");
    assert!(running.health.gauges().waiting.load(Relaxed) <= 101);
    mended.store(true, Relaxed);
    let healed = Instant::now();
    settled(&store).await;
    assert!(healed.elapsed() < 5 * SECOND, "took {:?}", healed.elapsed());
    publisher.view(|view| assert_eq!((view.delivered().len(), view.copies()), (3_050, 0)));
    running.stop().await;
}

/// The whole backlog of a paused topic is looked at once a minute at most, however it is divided among aggregates, and
/// also where it is more than a batch.
#[tokio::test(start_paused = true)]
async fn a_topic_that_stays_paused_for_long_is_read_rarely() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(move |_, _| {
        Scripted::Fail(PublishError::new(ErrorKind::Misconfigured, "no exchange").with_topic("order"))
    }));
    insert(&store, (0..1_000).map(|n| n % 250));
    let mut config = config();
    (config.queue_events, config.batch_size, config.window) = (100, 50, 50);
    let running = run(config, &store, &publisher);
    elapse(10 * SECOND).await;
    let (reads, spilled) = (store.calls(Call::Read), &running.health.counters().spilled);
    let before = spilled.load(Relaxed);
    elapse(600 * SECOND).await;
    let (reads, polls) = (store.calls(Call::Read) - reads, 600_000 / 47);
    let again = spilled.load(Relaxed) - before;
    assert!(again <= 11 * 1_000, "{again} events were read again in ten minutes");
    assert!(reads <= polls + 11 * 50, "{reads} reads, {polls} of them polls");
    running.stop().await;
}
