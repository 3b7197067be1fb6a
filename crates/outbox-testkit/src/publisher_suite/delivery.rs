//! What arrives, and what is reported about it.

use std::collections::HashMap;

use outbox_core::{Headers, Payload, Receipt};

use super::{
    Fault, PublisherHarness, arrived_ids, event, events, fill, ids, kinds, not_claimed, partly_not_claimed, publish,
    publish_all, sorted,
};

/// Every event arrives once, its bytes and headers as they were, under its id.
pub async fn everything_arrives_with_its_id_bytes_and_headers(harness: &dyn PublisherHarness) {
    let mut batch = events(4);
    batch[0].payload = Payload::raw_json("{ \"a\" : 1.10, \"a\":\t12345678901234567890 }");
    batch[1].payload = Payload::bytes(vec![1, 0xff, b'\n', 0], "application/x-test");
    batch[2].headers = Headers::from([
        ("traceparent".to_owned(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        ("tenant".to_owned(), "a b".to_owned()),
    ]);
    batch[3].payload = Payload::raw_json(format!("\"{}\"", "x".repeat(200_000)));
    let publisher = harness.publisher().await;
    publish_all(&*publisher, &batch).await;

    let arrived = harness.arrived(batch.len()).await;
    assert_eq!(sorted(arrived_ids(&arrived)), sorted(ids(&batch)));
    for sent in &batch {
        let id = sent.event_id.to_string();
        let message = arrived.iter().find(|message| message.event_id == id).expect("it arrived, see above");
        assert_eq!(message.body, sent.payload.data(), "the body byte for byte");
        let system = [
            ("event-id", id.as_str()),
            ("event-type", &sent.event_type),
            ("aggregate-type", &sent.aggregate_type),
            ("aggregate-id", &sent.aggregate_id),
            ("created-at", "2024-02-29T23:59:59.999999Z"),
            ("content-type", sent.payload.content_type()),
        ];
        let own = sent.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in system.into_iter().chain(own) {
            assert_eq!(message.headers.get(name).map(String::as_str), Some(value), "header {name}");
        }
    }
}

/// An event that fails has its outcome in its own place, wherever it stands.
pub async fn outcomes_are_in_the_order_of_the_batch(harness: &dyn PublisherHarness) {
    let Some(max) = harness.claims().max_event_bytes else {
        return not_claimed("a largest event, so none that surely fails");
    };
    let publisher = harness.publisher().await;
    for bad in [0, 5, 9] {
        let mut batch = events(10);
        fill(harness, &mut batch[bad], max + 1);
        let failed: Vec<_> = kinds(&publish(&*publisher, &batch).await).iter().map(Result::is_err).collect();
        let expected: Vec<_> = (0..10).map(|index| index == bad).collect();
        assert_eq!(failed, expected, "event {bad} is too large");
    }
}

/// With the broker away an empty batch is still answered, empty.
pub async fn an_empty_batch_does_no_io(harness: &dyn PublisherHarness) {
    let publisher = harness.publisher().await;
    if !harness.set_fault(Fault::Refuse).await {
        partly_not_claimed("faults; the empty batch met a broker that is well");
    }
    assert!(publish(&*publisher, &[]).await.is_empty());
}

/// More events, and more bytes, than any broker takes at once.
pub async fn a_batch_beyond_the_brokers_limits_is_cut(harness: &dyn PublisherHarness) {
    let publisher = harness.publisher().await;
    let mut batch = events(2500);
    for event in batch.iter_mut().step_by(50) {
        event.payload = Payload::bytes(vec![b'x'; 60_000], "text/plain");
    }
    publish_all(&*publisher, &batch).await;
    let arrived = harness.arrived(batch.len()).await;
    assert_eq!(sorted(arrived_ids(&arrived)), sorted(ids(&batch)));
}

/// Events of one aggregate, each published when the one before it was confirmed, arrive in that order.
pub async fn awaited_calls_keep_order(harness: &dyn PublisherHarness) {
    let publisher = harness.publisher().await;
    let batch: Vec<_> = (1..=50).map(|number| event("one", number)).collect();
    for event in &batch {
        publish_all(&*publisher, std::slice::from_ref(event)).await;
    }
    assert_eq!(arrived_ids(&harness.arrived(batch.len()).await), ids(&batch));
}

/// Declared, events of one aggregate in one call arrive in order, and none is sent after one that failed. Not
/// declared, nothing is promised: the relay then never puts two of one aggregate into a call.
pub async fn order_within_a_batch_is_as_declared(harness: &dyn PublisherHarness) {
    if !harness.claims().keeps_order_in_batch {
        return not_claimed("order within a batch");
    }
    let publisher = harness.publisher().await;
    let mut batch: Vec<_> =
        (1..=60).zip(["a", "b", "c"].into_iter().cycle()).map(|(number, key)| event(key, number)).collect();
    publish_all(&*publisher, &batch).await;
    let mut expected: HashMap<String, Vec<String>> = HashMap::new();
    for event in &batch {
        expected.entry(event.aggregate_id.clone()).or_default().push(event.event_id.to_string());
    }
    let mut found: HashMap<String, Vec<String>> = HashMap::new();
    for message in harness.arrived(batch.len()).await {
        found.entry(message.headers["aggregate-id"].clone()).or_default().push(message.event_id);
    }
    assert_eq!(found, expected);

    let Some(max) = harness.claims().max_event_bytes else {
        return partly_not_claimed("a largest event, so none that surely fails in the middle");
    };
    batch = (1..=3).map(|number| event("d", number)).collect();
    fill(harness, &mut batch[1], max + 1);
    let outcomes = publish(&*publisher, &batch).await;
    assert!(outcomes[0].is_ok() && outcomes[1].is_err() && outcomes[2].is_err(), "{outcomes:?}");
    let arrived = arrived_ids(&harness.arrived(61).await);
    assert!(!arrived.contains(&batch[2].event_id.to_string()), "sent after an earlier one of its aggregate failed");
}

/// Declared, the second copy of an event id does not arrive, and is reported as a duplicate where that is declared too.
/// Not declared, it arrives. What is not declared is never called a duplicate.
pub async fn a_second_copy_is_treated_as_declared(harness: &dyn PublisherHarness) {
    let publisher = harness.publisher().await;
    let batch = [event("one", 1)];
    publish_all(&*publisher, &batch).await;
    let again = publish(&*publisher, &batch).await.remove(0).expect("a copy is no error");
    let marker = [event("two", 2)];
    publish_all(&*publisher, &marker).await;
    let copies = if harness.claims().deduplicates { 1 } else { 2 };
    let arrived = arrived_ids(&harness.arrived(copies + 1).await);
    let id = batch[0].event_id.to_string();
    assert_eq!(arrived.iter().filter(|arrived| **arrived == id).count(), copies);
    let told = harness.claims().reports_duplicates;
    assert_eq!(again, if told { Receipt::duplicate() } else { Receipt::confirmed() });
}

/// Many calls at once, small and large, each with its own outcomes.
pub async fn calls_run_side_by_side(harness: &dyn PublisherHarness) {
    let publisher = harness.publisher().await;
    let batches: Vec<_> = (0..40).map(|call| events(if call % 10 == 0 { 120 } else { 3 })).collect();
    let mut calls = tokio::task::JoinSet::new();
    for batch in batches.clone() {
        let publisher = std::sync::Arc::clone(&publisher);
        calls.spawn(async move { publish_all(&*publisher, &batch).await });
    }
    while let Some(call) = calls.join_next().await {
        call.expect("each call succeeds");
    }
    let sent = ids(batches.iter().flatten());
    assert_eq!(sorted(arrived_ids(&harness.arrived(sent.len()).await)), sorted(sent));
}
