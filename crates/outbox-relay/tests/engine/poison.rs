//! A publisher that panics, forgets, or refuses a part of a batch.

use std::sync::Arc;

use outbox_core::{Capabilities, ErrorKind};
use outbox_relay::{DestinationState, Ordering};
use outbox_testkit::memory::{MemoryPublisher, MemoryStore, Scripted};
use tokio::time::Instant;

use crate::rig::{SECOND, assert_nothing_charged, config, insert, run, settled};

#[tokio::test(start_paused = true)]
async fn a_panic_is_charged_to_the_event_that_causes_it() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|event, _| match event.aggregate_id.as_str() {
        "7" => Scripted::Panic,
        _ => Scripted::Confirm,
    }));
    insert(&store, (0..60).map(|n| n % 20));
    let mut config = config();
    config.max_attempts = 3;
    let running = run(config, &store, &publisher);
    let begun = Instant::now();
    store.wait_until(|view| view.pending() == 3).await;
    assert!(begun.elapsed() < SECOND, "the neighbours waited {:?}", begun.elapsed());
    let copies = publisher.view(|view| view.copies());
    assert!(copies <= 20, "{copies} copies");
    settled(&store).await;
    publisher.view(|view| {
        assert_eq!(view.inversions(), []);
        assert_eq!(view.delivered().len() - view.copies(), 57);
        assert!(view.copies() <= copies + 20, "a culprit that is known panics alone: {}", view.copies());
    });
    store.view(|view| {
        let dead: Vec<_> = view.dead_letters().iter().map(|dead| (dead.attempts, dead.kind.as_str())).collect();
        assert_eq!(dead, [(3, "failed"); 3]);
        assert!(view.dead_letters().iter().all(|dead| dead.reason.contains("panicked: as the test says")));
    });
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_slot_is_unconfirmed() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|event, nth| match (event.id, nth) {
        (2, 1) => Scripted::Forget,
        _ => Scripted::Confirm,
    }));
    insert(&store, ["a", "b", "c"]);
    let running = run(config(), &store, &publisher);
    settled(&store).await;
    assert_eq!(publisher.delivered_ids(), [1, 3, 2]);
    assert_nothing_charged(&store);
    running.stop().await;
}

// What follows a failed event of its aggregate was not sent: its outcome blames nobody.
#[tokio::test(start_paused = true)]
async fn followers_of_a_failed_event_do_not_stop_the_destination() {
    for ordering in [Ordering::Aggregate, Ordering::None] {
        let store = MemoryStore::new();
        let in_order = Capabilities::CAUTIOUS.keeping_order_in_batch();
        let publisher = MemoryPublisher::new().with_capabilities(in_order).with_script(|event, nth| match event.id {
            1 if nth <= 2 => Scripted::fail(ErrorKind::Failed),
            _ => Scripted::Confirm,
        });
        let publisher = Arc::new(publisher);
        insert(&store, ["a", "a", "b", "a", "a", "b"]);
        let mut config = config();
        (config.ordering, config.retry_initial) = (ordering, 5 * SECOND);
        let running = run(config, &store, &publisher);
        let begun = Instant::now();
        store.wait_until(|view| view.retry(1).is_some()).await;
        insert(&store, ["c"]);
        publisher.wait_until(|view| view.delivered().iter().any(|event| event.id == 7)).await;
        assert!(begun.elapsed() < SECOND);
        settled(&store).await;
        assert_eq!(publisher.checks(), 1, "only the first probe: the breaker stayed closed");
        assert_eq!(running.health.status().destination, DestinationState::Up);
        publisher.view(|view| {
            assert_eq!((view.delivered().len(), view.copies()), (7, 0));
            assert!(ordering == Ordering::None || view.inversions().is_empty());
        });
        running.stop().await;
    }
}
