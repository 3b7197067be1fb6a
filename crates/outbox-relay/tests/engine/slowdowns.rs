//! The destination is away, slow or misconfigured: nothing is charged, and it heals by itself.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use outbox_core::{ErrorKind, NewEvent, Payload, PublishError};
use outbox_relay::DestinationState;
use outbox_testkit::memory::{Call, Fault, Hold, MemoryPublisher, MemoryStore, Scripted};
use tokio::time::Instant;

use crate::rig::{MILLI, SECOND, assert_nothing_charged, assert_once_in_order, config, elapse, insert, run, settled};

// B18: an outage spends no attempt, makes no dead letter, and probes at a capped pace.
#[tokio::test(start_paused = true)]
async fn five_minutes_without_a_broker_are_free() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_latency(MILLI));
    insert(&store, 0..100);
    let mut config = config();
    config.max_attempts = 5;
    let running = run(config, &store, &publisher);
    publisher.wait_for(100).await;
    publisher.set_down();
    let (begun, checks) = (Instant::now(), publisher.checks());
    let mut events = Vec::new();
    while begun.elapsed() < Duration::from_secs(300) {
        events.extend(insert(&store, 0..10));
        elapse(SECOND).await;
    }
    let probes = publisher.checks() - checks;
    assert!((100..=250).contains(&probes), "{probes} probes in 300 s");
    let handed_over: usize = publisher.view(|view| events.iter().map(|event| view.times(event.event_id)).sum());
    assert!(handed_over <= 10, "{handed_over} tries of events at a broker known to be away");
    assert_nothing_charged(&store);
    assert!(running.health.status().not_ready().unwrap().contains("the destination is down"));
    publisher.set_up();
    let back = Instant::now();
    settled(&store).await;
    assert!(back.elapsed() < 5 * SECOND, "recovered after {:?}", back.elapsed());
    assert_once_in_order(&store, &publisher, 3_100);
    running.status(|status| status.not_ready().is_none()).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn throttling_halves_the_window_and_confirms_regain_it() {
    let store = MemoryStore::new();
    let (small, large) = (Hold::new(), Hold::new());
    let (half, whole) = (small.clone(), large.clone());
    let publisher = Arc::new(MemoryPublisher::new().with_script(move |event, nth| match (event.id, nth) {
        (1..=8, 1) => Scripted::fail(ErrorKind::Throttled),
        (1..=8, _) => Scripted::hold(&half, Scripted::Confirm),
        (21.., _) => Scripted::hold(&whole, Scripted::Confirm),
        _ => Scripted::Confirm,
    }));
    insert(&store, 1..=8);
    let mut config = config();
    config.window = 8;
    let running = run(config, &store, &publisher);
    small.reached().await;
    elapse(SECOND).await;
    assert_eq!(publisher.view(|view| view.in_flight()), 4);
    small.release();
    settled(&store).await;
    insert(&store, 9..=20);
    settled(&store).await;
    insert(&store, 21..=40);
    large.reached().await;
    elapse(SECOND).await;
    assert_eq!(publisher.view(|view| view.in_flight()), 8);
    large.release();
    settled(&store).await;
    assert_once_in_order(&store, &publisher, 40);
    running.stop().await;
}

fn invoice(aggregate: &str) -> NewEvent {
    NewEvent::new("invoice", aggregate, "invoice.sent", Payload::raw_json("{}"))
}

/// Twenty polls a second are forty turns of the loop; a loop that spins makes as many as the processor can.
fn assert_polls_only(turns: u64, seconds: u64) {
    assert!(turns < 60 * seconds, "{turns} turns in {seconds} s");
}

#[tokio::test(start_paused = true)]
async fn a_missing_topic_pauses_only_itself() {
    let store = MemoryStore::new();
    let mended = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&mended);
    let publisher = Arc::new(MemoryPublisher::new().with_script(move |event, _| {
        if event.aggregate_type == "order" || fails.load(Relaxed) {
            return Scripted::Confirm;
        }
        Scripted::Fail(PublishError::new(ErrorKind::Misconfigured, "no exchange").with_topic("invoice"))
    }));
    for n in 0..50 {
        store.insert(&invoice(&(n % 5).to_string()));
    }
    insert(&store, 0..50);
    let running = run(config(), &store, &publisher);
    publisher.wait_for(50).await;
    running.status(|status| matches!(status.destination, DestinationState::TopicsPaused(1, _))).await;
    assert!(running.health.status().not_ready().unwrap().contains("topic `invoice`: no exchange"));
    let turns = running.health.turns();
    elapse(200 * SECOND).await;
    assert_polls_only(running.health.turns() - turns, 200);
    insert(&store, 0..50);
    publisher.wait_for(100).await;
    let calls = publisher.view(|view| view.publishes());
    assert!(calls < 400, "{calls} calls in 200 s");
    assert_nothing_charged(&store);
    assert_eq!(publisher.checks(), 1, "the destination as a whole was never in doubt");
    mended.store(true, Relaxed);
    let back = Instant::now();
    settled(&store).await;
    assert!(back.elapsed() < 5 * SECOND, "recovered after {:?}", back.elapsed());
    assert_once_in_order(&store, &publisher, 150);
    running.status(|status| status.not_ready().is_none()).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_probe_of_a_topic_keeps_to_the_window() {
    let store = MemoryStore::new();
    let mended = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&mended);
    let publisher = Arc::new(MemoryPublisher::new().with_script(move |event, _| {
        if event.aggregate_type == "order" || fails.load(Relaxed) {
            return Scripted::Confirm;
        }
        Scripted::Fail(PublishError::new(ErrorKind::Misconfigured, "no exchange").with_topic("invoice"))
    }));
    store.insert(&invoice("1"));
    let mut config = config();
    config.window = 2;
    let running = run(config, &store, &publisher);
    running.status(|status| matches!(status.destination, DestinationState::TopicsPaused(1, _))).await;
    let settling = Hold::new();
    store.script(Call::Settle, Fault::HoldBefore(settling.clone()));
    insert(&store, 0..2);
    publisher.wait_for(2).await;
    mended.store(true, Relaxed);
    elapse(10 * SECOND).await;
    assert_eq!(publisher.view(|view| view.delivered().len()), 2, "two are unsettled already");
    settling.release();
    settled(&store).await;
    assert_once_in_order(&store, &publisher, 3);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_misconfigured_destination_pauses_as_a_whole() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new());
    let running = run(config(), &store, &publisher);
    running.status(|status| status.not_ready().is_none()).await;
    publisher.refuse(PublishError::new(ErrorKind::Misconfigured, "access refused"));
    insert(&store, 0..10);
    running.status(|status| matches!(status.destination, DestinationState::Paused(_))).await;
    let turns = running.health.turns();
    elapse(300 * SECOND).await;
    assert_polls_only(running.health.turns() - turns, 300);
    assert_nothing_charged(&store);
    let calls = publisher.view(|view| view.publishes());
    assert_eq!(calls, 1, "after the first refusal only probes are made");
    publisher.set_up();
    let back = Instant::now();
    settled(&store).await;
    assert!(back.elapsed() < 5 * SECOND, "recovered after {:?}", back.elapsed());
    assert_once_in_order(&store, &publisher, 10);
    running.stop().await;
}

// A publisher that names another topic than the event's own must not be asked in a tight loop.
#[tokio::test(start_paused = true)]
async fn an_error_about_another_topic_pauses_the_destination() {
    let store = MemoryStore::new();
    let mended = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&mended);
    let publisher = Arc::new(MemoryPublisher::new().with_script(move |_, _| {
        if fails.load(Relaxed) {
            return Scripted::Confirm;
        }
        Scripted::Fail(PublishError::new(ErrorKind::Misconfigured, "no exchange").with_topic("elsewhere"))
    }));
    insert(&store, 0..10);
    let running = run(config(), &store, &publisher);
    elapse(60 * SECOND).await;
    let calls = publisher.view(|view| view.publishes());
    assert!(calls < 100, "{calls} calls in a minute");
    mended.store(true, Relaxed);
    settled(&store).await;
    assert_once_in_order(&store, &publisher, 10);
    running.stop().await;
}
