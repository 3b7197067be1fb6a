//! A dependency that works in part, or comes and goes: it is told a few times, and readiness does not flicker.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use outbox_core::{ErrorKind, PublishError, StoreErrorKind};
use outbox_relay::{RouteHealth, RouteStatus};
use outbox_testkit::memory::{Call, Fault, MemoryPublisher, MemoryStore, Scripted};
use tokio::time::Instant;

use crate::rig::{MILLI, SECOND, assert_nothing_charged, assert_once_in_order, config, elapse, insert, run, settled};

/// Whether the route was ready, at each change of its status from now on.
fn record(health: &RouteHealth) -> Arc<Mutex<Vec<Option<String>>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (mut watch, into) = (health.watch(), Arc::clone(&seen));
    tokio::spawn(async move {
        while watch.changed().await.is_ok() {
            let reason = RouteStatus::not_ready(&watch.borrow_and_update());
            into.lock().expect("no panic under it").push(reason);
        }
    });
    seen
}

// Probes succeed, events do not: a full queue, lost answers, a closed pipe, an error about another topic.
#[tokio::test(start_paused = true)]
async fn a_destination_that_only_answers_probes_is_one_outage() {
    let kinds = [ErrorKind::Throttled, ErrorKind::Unconfirmed, ErrorKind::Misconfigured, ErrorKind::Unavailable];
    for (kind, most) in kinds.map(|kind| (kind, if kind == ErrorKind::Unavailable { 2 } else { 1 })) {
        let store = MemoryStore::new();
        let mended = Arc::new(AtomicBool::new(true));
        let works = Arc::clone(&mended);
        let publisher = Arc::new(MemoryPublisher::new().with_script(move |_, _| match works.load(Relaxed) {
            true => Scripted::Confirm,
            false => Scripted::Fail(PublishError::new(kind, "does not take events").with_topic("elsewhere")),
        }));
        insert(&store, ["first"]);
        let mut config = config();
        // A lone suspect would be charged: its answer is lost while probes succeed.
        config.max_attempts = 1_000;
        let running = run(config, &store, &publisher);
        settled(&store).await;
        running.status(|status| status.not_ready().is_none()).await;
        mended.store(false, Relaxed);
        insert(&store, 0..50);
        running.status(|status| status.not_ready().is_some()).await;
        if most == 2 {
            // Once a probe is believed: events then prove it wrong.
            elapse(SECOND).await;
        }
        let (seen, turns) = (record(&running.health), running.health.turns());
        elapse(60 * SECOND).await;
        let outages = running.health.counters().outages.load(Relaxed);
        let flickers = seen.lock().unwrap().iter().filter(|reason| reason.is_none()).count();
        if kind != ErrorKind::Unconfirmed {
            assert!(outages <= most, "{kind}: {outages} outages told");
            assert_eq!(flickers, 0, "{kind}: ready in between");
            assert_nothing_charged(&store);
            let calls = publisher.view(|view| view.publishes());
            assert!(calls < 150, "{kind}: the pauses grow; {calls} calls in a minute");
        }
        let turns = running.health.turns() - turns;
        assert!(turns < 60 * 150, "{kind}: {turns} turns in a minute");
        mended.store(true, Relaxed);
        settled(&store).await;
        running.status(|status| status.not_ready().is_none()).await;
        publisher.view(|view| assert_eq!((view.inversions(), view.copies()), (vec![], 0)));
        running.stop().await;
    }
}

// Some of a batch pass, some do not: the pauses grow all the same, and the outage goes on.
#[tokio::test(start_paused = true)]
async fn a_confirm_beside_a_refusal_ends_nothing() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|event, _| match event.aggregate_id.as_str() {
        "refused" => Scripted::fail(ErrorKind::Misconfigured),
        _ => Scripted::Confirm,
    }));
    let running = run(config(), &store, &publisher);
    running.status(|status| status.not_ready().is_none()).await;
    insert(&store, ["refused"]);
    running.status(|status| status.not_ready().is_some()).await;
    let (calls, seen) = (publisher.view(|view| view.publishes()), record(&running.health));
    for n in 0..240 {
        insert(&store, [n]);
        elapse(250 * MILLI).await;
    }
    let calls = publisher.view(|view| view.publishes()) - calls;
    assert!(calls < 90, "{calls} calls in a minute");
    assert!(seen.lock().unwrap().iter().all(Option::is_some), "{seen:?}");
    assert_eq!(running.health.counters().outages.load(Relaxed), 1);
    assert!(publisher.view(|view| view.delivered().len()) > 200, "the others go on");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_whose_events_are_gone_ends_without_a_confirm() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|_, nth| match nth {
        1 => Scripted::fail(ErrorKind::Throttled),
        _ => Scripted::fail(ErrorKind::Rejected),
    }));
    let running = run(config(), &store, &publisher);
    running.status(|status| status.not_ready().is_none()).await;
    insert(&store, ["a"]);
    running.status(|status| status.not_ready().is_some()).await;
    running.status(|status| status.not_ready().is_none()).await;
    assert_eq!(store.view(|view| view.dead_letters().len()), 1);
    running.stop().await;
}

// Leases are renewed and confirmed events deleted while reads fail: that hides nothing.
#[tokio::test(start_paused = true)]
async fn reads_that_fail_are_told_although_other_calls_work() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new());
    let running = run(config(), &store, &publisher);
    running.status(|status| status.not_ready().is_none()).await;
    for _ in 0..100 {
        store.script(Call::Read, Fault::Refuse(StoreErrorKind::Unprepared));
    }
    running.status(|status| status.not_ready().is_some()).await;
    let (renewals, seen) = (store.calls(Call::Renew), record(&running.health));
    let begun = Instant::now();
    store.wait_until(|view| view.calls(Call::Renew) >= renewals + 3).await;
    assert!(begun.elapsed() > 10 * SECOND);
    assert!(seen.lock().unwrap().iter().all(Option::is_some), "{seen:?}");
    running.status(|status| status.not_ready().is_none()).await;
    insert(&store, 0..5);
    settled(&store).await;
    assert_once_in_order(&store, &publisher, 5);
    running.stop().await;
}
