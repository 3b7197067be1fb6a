//! The database is away, loses answers, or is replaced.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use outbox_core::{ErrorKind, StoreErrorKind};
use outbox_testkit::memory::{Call, Fault, MemoryPublisher, MemoryStore, Scripted};
use tokio::time::Instant;

use crate::rig::{MILLI, SECOND, assert_once_in_order, config, elapse, event, insert, run, settled};

#[tokio::test(start_paused = true)]
async fn an_outage_stops_at_the_window_and_copies_nothing() {
    // Shorter than the lease, and longer.
    for outage in [5 * SECOND, 120 * SECOND] {
        let store = MemoryStore::new();
        let publisher = Arc::new(MemoryPublisher::new().with_latency(5 * MILLI));
        insert(&store, 0..200);
        let mut config = config();
        (config.window, config.batch_size) = (10, 4);
        let running = run(config, &store, &publisher);
        publisher.wait_for(50).await;
        store.set_down(StoreErrorKind::Unavailable);
        let settled_before = store.view(|view| view.settled());
        running.status(|status| status.store_error.is_some()).await;
        elapse(outage).await;
        let unsettled = publisher.view(|view| view.delivered().len()) - usize::try_from(settled_before).unwrap();
        assert!(unsettled <= 10, "{unsettled} went out that could not be settled");
        let calls = [Call::Settle, Call::Read, Call::Renew].map(|call| store.calls(call));
        let most = outage.as_secs() * 5 + 100;
        assert!(calls.iter().sum::<u64>() <= 2 * most, "{calls:?} calls");
        store.set_up();
        let back = Instant::now();
        settled(&store).await;
        assert!(back.elapsed() < 5 * SECOND, "recovered after {:?}", back.elapsed());
        assert_once_in_order(&store, &publisher, 200);
        running.status(|status| status.not_ready().is_none()).await;
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_settle_whose_answer_is_lost_is_repeated() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new());
    store.script(Call::Settle, Fault::FailAfterWork(StoreErrorKind::Unavailable));
    store.script(Call::Settle, Fault::Refuse(StoreErrorKind::Failed));
    insert(&store, (0..10).map(|n| n % 2));
    let running = run(config(), &store, &publisher);
    store.wait_until(|view| view.pending() == 0 && view.calls(Call::Settle) > 2).await;
    assert_once_in_order(&store, &publisher, 10);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_counts_once_however_often_it_is_written() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|event, _| match event.id {
        1 => Scripted::fail(ErrorKind::Failed),
        2 => Scripted::fail(ErrorKind::Rejected),
        _ => Scripted::Confirm,
    }));
    for fault in [
        Fault::Refuse(StoreErrorKind::Unavailable),
        Fault::FailAfterWork(StoreErrorKind::Unavailable),
        Fault::FailAfterWork(StoreErrorKind::Failed),
    ] {
        store.script(Call::WriteBack, fault);
    }
    let events = insert(&store, ["a", "b", "a", "b"]);
    let mut config = config();
    (config.retry_initial, config.retry_max) = (60 * SECOND, 60 * SECOND);
    let running = run(config, &store, &publisher);
    publisher.wait_for(1).await;
    // Refused as a whole, the two are written one by one.
    store.wait_until(|view| view.calls(Call::WriteBack) >= 5).await;
    elapse(SECOND).await;
    store.view(|view| {
        assert_eq!(view.retry(1).map(|row| row.attempts), Some(1));
        assert_eq!(view.dead_letters().len(), 1);
    });
    assert_eq!(publisher.view(|view| view.times(events[0].event_id)), 1);
    assert_eq!(publisher.delivered_ids(), [4]);
    assert_eq!(running.health.counters().failed.load(Relaxed), 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_read_loses_nothing() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_latency(MILLI));
    for n in 0..30 {
        let kind = StoreErrorKind::Unavailable;
        store.script(Call::Read, if n % 3 == 0 { Fault::Refuse(kind) } else { Fault::FailAfterWork(kind) });
        store.script(Call::Read, Fault::Pass);
    }
    insert(&store, (0..3_000).map(|n| n % 10));
    let running = run(config(), &store, &publisher);
    settled(&store).await;
    assert_once_in_order(&store, &publisher, 3_000);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_server_is_read_from_zero_without_copies() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_latency(3 * MILLI));
    insert(&store, (0..600).map(|n| n % 20));
    let mut config = config();
    config.window = 50;
    let running = run(config, &store, &publisher);
    for restart in 1..=5 {
        publisher.wait_for(restart * 80).await;
        store.restart();
        store.wait_until(|view| view.calls(Call::OpenLane) > restart as u64).await;
    }
    settled(&store).await;
    assert_once_in_order(&store, &publisher, 600);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn ids_that_begin_anew_are_delivered() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new());
    insert(&store, 0..50);
    let running = run(config(), &store, &publisher);
    settled(&store).await;
    store.truncate();
    let second = insert(&store, 0..50);
    assert_eq!(second[0].id, 1);
    settled(&store).await;
    publisher.view(|view| assert_eq!((view.delivered().len(), view.copies()), (100, 0)));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_sweep_finds_what_no_read_can_find_and_nothing_else() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_latency(MILLI));
    let mut config = config();
    config.full_sweep_interval = 60 * SECOND;
    let running = run(config, &store, &publisher);
    let late = &running.health.counters().late_full_sweep;
    for n in 0..300 {
        let mut slow = store.begin();
        slow.insert(&event("slow"));
        insert(&store, [n % 7]);
        elapse(500 * MILLI).await;
        slow.commit();
    }
    settled(&store).await;
    assert!(store.calls(Call::Sweep) >= 2);
    assert_eq!(late.load(Relaxed), 0);
    let hidden = store.insert_with_id(5, &event("hidden"));
    elapse(SECOND).await;
    assert!(store.view(|view| view.contains(hidden.id)), "no read can see it");
    settled(&store).await;
    assert_eq!(late.load(Relaxed), 1);
    assert_eq!(publisher.delivered_ids().last(), Some(&hidden.id));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sweep_goes_on_beside_a_backlog_that_never_ends() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new());
    let mut config = config();
    (config.full_sweep_interval, config.batch_size) = (SECOND, 4);
    for _ in 0..4_000 {
        store.script(Call::Read, Fault::Delay(MILLI));
    }
    insert(&store, 0..8_000);
    let running = run(config, &store, &publisher);
    store.wait_until(|view| view.calls(Call::Sweep) > 0).await;
    assert!(store.view(|view| view.pending()) > 1_000, "the sweep waited for the end of the backlog");
    settled(&store).await;
    running.stop().await;
}
