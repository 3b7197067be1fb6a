//! The memory store misbehaves exactly as it is told.

use std::time::Duration;

use outbox_core::{
    Confirmed, Lane, NewEvent, Ownership, Payload, ReadRequest, ReadScope, Selection, Store, StoreErrorKind,
};
use outbox_testkit::memory::{Call, Fault, Hold, Inserted, MemoryStore};

fn insert(store: &MemoryStore, aggregate: &str) -> Inserted {
    store.insert(&NewEvent::new("order", aggregate, "x", Payload::raw_json("{}")))
}

fn forward() -> ReadRequest {
    ReadRequest {
        scope: ReadScope::Forward,
        max_events: 100,
        max_bytes: usize::MAX,
        forget: Vec::new(),
        dropped: Vec::new(),
    }
}

async fn own(store: &MemoryStore) -> (Ownership, Box<dyn Lane>) {
    let ownership = store.acquire(&Selection::everything("r"), Duration::from_secs(60)).await.unwrap().owned().unwrap();
    let lane = store.open_lane(&ownership).await.unwrap();
    (ownership, lane)
}

#[tokio::test]
async fn a_refused_call_does_nothing_and_a_lost_answer_did_its_work() {
    let store = MemoryStore::new();
    let events = [insert(&store, "a"), insert(&store, "b")];
    let confirmed = events.map(|event| Confirmed { id: event.id, event_id: event.event_id, retried: false });
    store.script(Call::Settle, Fault::Refuse(StoreErrorKind::Unavailable));
    store.script(Call::Settle, Fault::FailAfterWork(StoreErrorKind::Failed));
    assert_eq!(store.settle("r", &confirmed[..1]).await.unwrap_err().kind(), StoreErrorKind::Unavailable);
    assert_eq!(store.view(|view| view.pending()), 2);
    assert_eq!(store.settle("r", &confirmed[..1]).await.unwrap_err().kind(), StoreErrorKind::Failed);
    assert_eq!(store.view(|view| view.ids()), [events[1].id]);
    store.settle("r", &confirmed).await.unwrap();
    assert_eq!(store.view(|view| (view.pending(), view.settled(), view.calls(Call::Settle))), (0, 2, 3));
}

#[tokio::test]
async fn a_read_whose_answer_is_lost_is_made_again() {
    let store = MemoryStore::new();
    let first = insert(&store, "a");
    let (_, mut lane) = own(&store).await;
    store.script(Call::Read, Fault::FailAfterWork(StoreErrorKind::Unavailable));
    lane.read(forward()).await.unwrap_err();
    assert_eq!(lane.read(forward()).await.unwrap().events[0].envelope.id, first.id);

    // Held after its snapshot and dropped: the same.
    let second = insert(&store, "a");
    let hold = Hold::new();
    store.script(Call::Read, Fault::HoldAfter(hold.clone()));
    tokio::select! {
        _ = lane.read(forward()) => panic!("the read was held"),
        () = hold.reached() => {}
    }
    assert_eq!(lane.read(forward()).await.unwrap().events[0].envelope.id, second.id);
}

#[tokio::test]
async fn an_outage_hits_one_relay_and_not_its_neighbours() {
    let store = MemoryStore::new();
    let other = store.another_relay();
    store.set_down(StoreErrorKind::Unavailable);
    store.acquire(&Selection::everything("r"), Duration::from_secs(60)).await.unwrap_err();
    let (ownership, _) = own(&other).await;
    assert_eq!(ownership.owner, other.owner_id());
    assert_eq!(store.view(|view| view.owner("r")), Some(other.owner_id()));
    store.set_up();
    assert!(store.acquire(&Selection::everything("r"), Duration::from_secs(60)).await.unwrap().owned().is_none());
    store.skip_time(Duration::from_secs(61));
    assert!(store.acquire(&Selection::everything("r"), Duration::from_secs(60)).await.unwrap().owned().is_some());
}

#[tokio::test]
async fn a_restart_is_told_until_the_lane_is_opened_anew() {
    let store = MemoryStore::new();
    insert(&store, "a");
    let (ownership, mut lane) = own(&store).await;
    lane.read(forward()).await.unwrap();
    store.truncate();
    let again = insert(&store, "a");
    assert_eq!(again.id, 1, "ids were reset");
    for _ in 0..2 {
        assert_eq!(lane.read(forward()).await.unwrap_err().kind(), StoreErrorKind::Restarted);
        assert_eq!(lane.sweep(0).await.unwrap_err().kind(), StoreErrorKind::Restarted);
    }
    let mut lane = store.open_lane(&ownership).await.unwrap();
    assert_eq!(lane.read(forward()).await.unwrap().events[0].envelope.event_id, again.event_id);
}

#[tokio::test]
async fn a_defective_row_says_so() {
    let store = MemoryStore::new();
    store.insert_defective(&NewEvent::new("order", "a", "x", Payload::raw_json("{}")), "headers are no object");
    let (_, mut lane) = own(&store).await;
    let batch = lane.read(forward()).await.unwrap();
    assert_eq!(batch.events[0].defect.as_deref(), Some("headers are no object"));
}

#[tokio::test]
async fn a_test_waits_for_what_it_wants_to_see() {
    let store = MemoryStore::new();
    let waiting = store.clone();
    let seen = tokio::spawn(async move { waiting.wait_until(|view| view.pending() == 2).await });
    insert(&store, "a");
    assert!(!seen.is_finished());
    insert(&store, "b");
    seen.await.unwrap();
    store.script(Call::Renew, Fault::Delay(Duration::from_millis(1)));
    let (ownership, _) = own(&store).await;
    assert!(store.renew(&ownership).await.unwrap().is_held());
    store.wait_until(|view| view.calls(Call::Renew) == 1).await;
}
