//! The memory publisher does what it declares and what the test tells it.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{
    Capabilities, Envelope, ErrorKind, NewEvent, Payload, PublishReport, Publisher, ReadRequest, Selection,
};
use outbox_core::{ReadScope, Store};
use outbox_testkit::memory::{Hold, MemoryPublisher, MemoryStore, Scripted};

/// Envelopes of these aggregates, with ids 1, 2, …
async fn envelopes(aggregates: &[&str]) -> Vec<Envelope> {
    let store = MemoryStore::new();
    for aggregate in aggregates {
        store.insert(&NewEvent::new("order", *aggregate, "x", Payload::raw_json("{}")));
    }
    let ownership = store.acquire(&Selection::everything("r"), Duration::from_secs(60)).await.unwrap().owned().unwrap();
    let request = ReadRequest {
        scope: ReadScope::Forward,
        max_events: 100,
        max_bytes: usize::MAX,
        forget: Vec::new(),
        dropped: Vec::new(),
    };
    let batch = store.open_lane(&ownership).await.unwrap().read(request).await.unwrap();
    batch.events.into_iter().map(|event| event.envelope).collect()
}

fn kinds(report: PublishReport, events: usize) -> Vec<Option<ErrorKind>> {
    report.into_outcomes(events).into_iter().map(|outcome| outcome.err().map(|error| error.kind())).collect()
}

#[tokio::test]
async fn each_event_has_the_outcome_and_the_arrival_that_the_script_says() {
    let publisher = MemoryPublisher::new().with_script(|event, nth_time| match (event.id, nth_time) {
        (1, 1) => Scripted::fail(ErrorKind::Failed),
        (2, 1) => Scripted::deliver_and_fail(ErrorKind::Unconfirmed),
        (3, 1) => Scripted::Forget,
        (4, 1) => Scripted::DeliverAndForget,
        (5, 1) => Scripted::ConfirmDuplicate,
        _ => Scripted::Confirm,
    });
    let events = envelopes(&["a", "b", "c", "d", "e", "f"]).await;
    let (failed, unconfirmed) = (Some(ErrorKind::Failed), Some(ErrorKind::Unconfirmed));
    let first = kinds(publisher.publish(&events).await, 6);
    assert_eq!(first, [failed, unconfirmed, unconfirmed, unconfirmed, None, None]);
    assert_eq!(publisher.delivered_ids(), [2, 4, 6]);
    assert_eq!(kinds(publisher.publish(&events).await, 6), [None; 6]);
    assert_eq!(publisher.delivered_ids(), [2, 4, 6, 1, 2, 3, 4, 5, 6]);
    publisher.view(|view| {
        assert_eq!((view.copies(), view.in_flight(), view.most_in_flight(), view.publishes()), (3, 0, 6, 2));
        assert_eq!(view.times(events[0].event_id), 2);
    });
}

#[tokio::test]
async fn a_declared_order_holds_through_failures() {
    let script = |event: &Envelope, nth_time| match (event.id, nth_time) {
        (1, 1) => Scripted::fail(ErrorKind::Failed),
        _ => Scripted::Confirm,
    };
    let events = envelopes(&["a", "b", "a", "a"]).await;
    let keeping =
        MemoryPublisher::new().with_capabilities(Capabilities::CAUTIOUS.keeping_order_in_batch()).with_script(script);
    let outcomes = kinds(keeping.publish(&events).await, 4);
    let not_sent = Some(ErrorKind::Unavailable);
    assert_eq!(outcomes, [Some(ErrorKind::Failed), None, not_sent, not_sent]);
    assert_eq!(keeping.delivered_ids(), [2]);
    keeping.publish(&events).await;
    assert_eq!(keeping.view(|view| view.inversions()), []);

    let cautious = MemoryPublisher::new().with_script(script);
    cautious.publish(&events).await;
    cautious.publish(&events[..1]).await;
    assert_eq!(cautious.view(|view| view.inversions()), [(4, 1)], "what breaks the order is seen");
    assert_eq!(cautious.view(|view| view.overlaps()), 2);
}

#[tokio::test]
async fn declared_limits_and_deduplication_are_kept() {
    let publisher = MemoryPublisher::new()
        .with_capabilities(Capabilities::CAUTIOUS.deduplicating().with_max_event_bytes(5))
        .with_topic(|event| format!("t.{}", event.aggregate_id));
    let mut events = envelopes(&["a", "b"]).await;
    events[1].payload = Payload::raw_json("123456");
    for duplicate in [false, true] {
        let outcomes = publisher.publish(&events).await.into_outcomes(2);
        assert_eq!(outcomes[0].as_ref().unwrap().duplicate, duplicate);
        assert_eq!(outcomes[1].as_ref().unwrap_err().kind(), ErrorKind::Rejected);
    }
    assert_eq!(publisher.delivered_ids(), [1]);
    assert_eq!(publisher.delivered()[0].topic, "t.a");
}

#[tokio::test]
async fn down_and_closed_nothing_arrives() {
    let publisher = MemoryPublisher::new();
    let events = envelopes(&["a"]).await;
    assert!(publisher.publish(&[]).await.is_empty());
    publisher.set_down();
    assert_eq!(publisher.check().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(kinds(publisher.publish(&events).await, 1), [Some(ErrorKind::Unavailable)]);
    publisher.set_up();
    publisher.check().await.unwrap();
    assert_eq!(kinds(publisher.publish(&events).await, 1), [None]);
    publisher.close().await;
    publisher.close().await;
    assert_eq!(kinds(publisher.publish(&events).await, 1), [Some(ErrorKind::Unavailable)]);
    assert_eq!((publisher.delivered_ids(), publisher.checks()), (vec![1], 2));
}

#[tokio::test]
async fn a_held_event_waits_and_others_go_on() {
    let hold = Hold::new();
    let held = hold.clone();
    let publisher = Arc::new(MemoryPublisher::new().with_script(move |event, _| match event.id {
        1 => Scripted::hold(&held, Scripted::Confirm),
        _ => Scripted::Confirm,
    }));
    let events = envelopes(&["a", "b"]).await;
    let (first, rest) = (events[..1].to_vec(), events[1..].to_vec());
    let waiting = Arc::clone(&publisher);
    let call = tokio::spawn(async move { waiting.publish(&first).await });
    hold.reached().await;
    publisher.publish(&rest).await;
    assert_eq!(publisher.delivered_ids(), [2]);
    assert_eq!(publisher.view(|view| view.in_flight()), 1);
    hold.release();
    publisher.wait_for(2).await;
    assert_eq!(kinds(call.await.unwrap(), 1), [None]);
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_unconfirmed_and_a_panic_leaves_no_trace() {
    let hold = Hold::new();
    let publisher = MemoryPublisher::new().with_answer_timeout(Duration::from_millis(5)).with_script({
        let hold = hold.clone();
        move |_, nth_time| match nth_time {
            1 => Scripted::hold(&hold, Scripted::Confirm),
            2 => Scripted::Panic,
            _ => Scripted::Confirm,
        }
    });
    let publisher = Arc::new(publisher);
    let events = envelopes(&["a"]).await;
    assert_eq!(kinds(publisher.publish(&events).await, 1), [Some(ErrorKind::Unconfirmed)]);
    let (other, same) = (Arc::clone(&publisher), events.clone());
    assert!(tokio::spawn(async move { other.publish(&same).await }).await.unwrap_err().is_panic());
    assert_eq!(publisher.view(|view| view.in_flight()), 0);
    assert_eq!(kinds(publisher.publish(&events).await, 1), [None]);
}
