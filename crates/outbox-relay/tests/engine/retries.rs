//! Events that the broker refuses: retries, dead letters, and what operators do to them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use outbox_core::{Change, ErrorKind, Selection, Store as _, WriteBack};
use outbox_relay::RouteConfig;
use outbox_testkit::memory::{Call, Fault, Hold, MemoryPublisher, MemoryStore, Scripted};
use tokio::time::Instant;

use crate::rig::{MILLI, ROUTE, SECOND, config, elapse, event, insert, run, settled};

// B06: a retry must not be overtaken, and must not hold up another aggregate.
#[tokio::test(start_paused = true)]
async fn a_retry_is_not_overtaken() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|event, nth| match (event.id, nth) {
        (1, 1 | 2) => Scripted::fail(ErrorKind::Failed),
        _ => Scripted::Confirm,
    }));
    let [a1, a2, a3, b1] = insert(&store, ["a", "a", "a", "b"])[..] else { panic!("four events") };
    let mut config = config();
    config.retry_initial = 5 * SECOND;
    let running = run(config, &store, &publisher);
    let begun = Instant::now();
    publisher.wait_for(1).await;
    assert!(begun.elapsed() < SECOND, "b did not wait for a");
    elapse(4 * SECOND).await;
    store.view(|view| {
        assert_eq!(view.retry(a1.id).map(|row| (row.attempts, row.kind.as_str())), Some((1, "failed")));
        assert!(view.retry(a2.id).is_none() && view.retry(a3.id).is_none());
    });
    settled(&store).await;
    assert!(begun.elapsed() >= 10 * SECOND, "two delays of at least 5 s: {:?}", begun.elapsed());
    assert_eq!(publisher.delivered_ids(), [b1.id, a1.id, a2.id, a3.id]);
    publisher.view(|view| {
        let times = [a1, a2, a3, b1].map(|event| view.times(event.event_id));
        assert_eq!(times, [3, 1, 1, 1]);
    });
    assert_eq!(store.view(|view| view.retries()), [], "a confirm removes the retry row");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_rejected_event_dies_at_once_and_its_aggregate_goes_on_after_the_commit() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|event, _| match event.id {
        1 => Scripted::fail(ErrorKind::Rejected),
        _ => Scripted::Confirm,
    }));
    let hold = Hold::new();
    store.script(Call::WriteBack, Fault::HoldBefore(hold.clone()));
    insert(&store, ["a", "a", "b"]);
    let running = run(config(), &store, &publisher);
    hold.reached().await;
    elapse(2 * SECOND).await;
    assert_eq!(publisher.delivered_ids(), [3], "the move to the dead letters has not committed");
    hold.release();
    settled(&store).await;
    assert_eq!(publisher.delivered_ids(), [3, 2]);
    store.view(|view| {
        let dead: Vec<_> = view.dead_letters().iter().map(|dead| (dead.envelope.id, dead.kind.as_str())).collect();
        assert_eq!(dead, [(1, "rejected")]);
    });
    assert_eq!(running.health.counters().dead_letters.load(Relaxed), 1);
    assert_eq!(publisher.view(|view| view.publishes()), 2);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_last_attempt_kills_and_the_aggregate_goes_on() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|event, _| match event.id {
        1 => Scripted::fail(ErrorKind::Failed),
        _ => Scripted::Confirm,
    }));
    let events = insert(&store, ["a", "a"]);
    let mut config = config();
    config.max_attempts = 3;
    let running = run(config, &store, &publisher);
    settled(&store).await;
    assert_eq!(publisher.view(|view| view.times(events[0].event_id)), 3);
    store.view(|view| {
        let [dead] = view.dead_letters() else { panic!("one dead letter") };
        assert_eq!((dead.envelope.id, dead.attempts, dead.kind.as_str()), (1, 3, "failed"));
        assert_eq!(view.retries(), []);
    });
    assert_eq!(publisher.delivered_ids(), [2]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_row_that_cannot_be_read_dies_alone() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new());
    insert(&store, ["a", "b"]);
    store.insert_defective(&event("a"), "headers are no object");
    insert(&store, ["a", "c"]);
    let running = run(config(), &store, &publisher);
    settled(&store).await;
    assert_eq!(publisher.delivered_ids(), [1, 2, 5, 4]);
    store.view(|view| {
        let [dead] = view.dead_letters() else { panic!("one dead letter") };
        assert_eq!((dead.envelope.id, dead.attempts), (3, 0));
        assert_eq!((dead.kind.as_str(), dead.reason.as_str()), ("undecodable", "headers are no object"));
    });
    running.stop().await;
}

// B21, end to end: whatever stands in the table, no overflow, and the delay stays between base and cap.
#[tokio::test(start_paused = true)]
async fn any_number_of_attempts_is_survived() {
    let store = MemoryStore::new();
    let numbers = [31, 32, 62, 63, 64, 1_000, i32::MAX.cast_unsigned(), u32::MAX];
    let events = insert(&store, numbers);
    let ownership = store.acquire(&Selection::everything(ROUTE), SECOND).await.unwrap().owned().expect("free");
    let rows = events.iter().zip(numbers).map(|(event, attempts)| WriteBack {
        id: event.id,
        event_id: event.event_id,
        bucket: 0,
        attempts,
        crashes: 0,
        kind: "failed",
        error: String::new(),
        change: Change::Retry { delay: Duration::ZERO },
    });
    let mut rows: Vec<WriteBack> = rows.collect();
    let forever = RouteConfig::MAX_DURATION * 100;
    rows[0].change = Change::Retry { delay: forever };
    store.write_back(&ownership, &rows).await.unwrap();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|_, nth| match nth {
        1 => Scripted::fail(ErrorKind::Failed),
        _ => Scripted::Confirm,
    }));
    let mut config = config();
    (config.max_attempts, config.retry_initial, config.retry_max) = (u32::MAX, 10 * SECOND, 60 * SECOND);
    config.poll_interval = SECOND;
    let running = run(config, &store, &publisher);
    store.wait_until(|view| view.retries().iter().skip(1).all(|row| row.due > view.now())).await;
    store.view(|view| {
        for (row, attempts) in view.retries().iter().zip(numbers).skip(1).take(6) {
            let delay = row.due - view.now();
            assert!((10 * SECOND..=60 * SECOND).contains(&delay), "{delay:?} after {attempts}");
            assert_eq!(row.attempts, attempts.saturating_add(1));
        }
        // The last number allowed was the last attempt.
        assert_eq!(view.dead_letters().iter().map(|dead| dead.attempts).collect::<Vec<_>>(), [u32::MAX]);
    });
    publisher.wait_for(6).await;
    assert!(store.make_due(events[0].id));
    settled(&store).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn operators_change_what_waits_and_the_route_sees_it() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|_, nth| match nth {
        1 => Scripted::fail(ErrorKind::Failed),
        _ => Scripted::Confirm,
    }));
    let heads = insert(&store, ["due", "clear", "delete", "leave"]);
    let mut config = config();
    (config.retry_initial, config.retry_max) = (60 * SECOND, 60 * SECOND);
    let running = run(config, &store, &publisher);
    store.wait_until(|view| view.retries().len() == 4).await;
    publisher.set_script(|_, _| Scripted::Confirm);
    let followers = insert(&store, ["due", "clear", "delete", "leave"]);
    let changed = Instant::now();
    assert!(store.make_due(heads[0].id) && store.clear_retry(heads[1].id) && store.delete_event(heads[2].id));
    publisher.wait_for(5).await;
    assert!(changed.elapsed() <= 2 * SECOND, "seen after {:?}", changed.elapsed());
    let mut arrived = publisher.delivered_ids();
    arrived.sort_unstable();
    assert_eq!(arrived, [heads[0].id, heads[1].id, followers[0].id, followers[1].id, followers[2].id]);
    assert_eq!(publisher.view(|view| view.inversions()), []);
    store.wait_until(|view| view.retry(heads[2].id).is_none()).await;
    settled(&store).await;
    assert!(changed.elapsed() >= 55 * SECOND, "what nobody touched waited its time");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_row_survives_the_relay() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|event, nth| match (event.id, nth) {
        (1, 1 | 2) => Scripted::fail(ErrorKind::Failed),
        _ => Scripted::Confirm,
    }));
    insert(&store, ["a", "a"]);
    let mut config = config();
    (config.retry_initial, config.retry_max) = (20 * SECOND, 20 * SECOND);
    let begun = Instant::now();
    let first = run(config.clone(), &store, &publisher);
    store.wait_until(|view| view.retry(1).is_some()).await;
    first.kill().await;
    let second = run(config, &store, &publisher);
    elapse(15 * SECOND).await;
    assert!(publisher.delivered_ids().is_empty(), "the delay is the table's");
    store.wait_until(|view| view.retry(1).is_some_and(|row| row.attempts == 2)).await;
    settled(&store).await;
    assert!(begun.elapsed() >= 40 * SECOND - MILLI);
    assert_eq!(publisher.delivered_ids(), [1, 2]);
    second.stop().await;
}
