//! What can't be published, and who is to blame.

use outbox_core::ErrorKind;

use super::{PublisherHarness, arrived_ids, assert_all, event, events, fill, ids, kinds, not_claimed, publish, sorted};

/// The event that is too large is rejected with a reason, all others of the batch arrive; the largest allowed one
/// passes.
pub async fn an_oversize_event_is_rejected_and_its_neighbours_are_sent(harness: &dyn PublisherHarness) {
    let Some(max) = harness.claims().max_event_bytes else { return not_claimed("a largest event") };
    let publisher = harness.publisher().await;
    let mut batch = events(7);
    fill(harness, &mut batch[2], max);
    fill(harness, &mut batch[3], max + 1);
    let outcomes = publish(&*publisher, &batch).await;
    let mut expected = [Ok(()); 7];
    expected[3] = Err(ErrorKind::Rejected);
    assert_eq!(kinds(&outcomes), expected);
    let report = outcomes[3].as_ref().expect_err("rejected").report();
    assert!(report.contains(&(max + 1).to_string()), "the reason must give the figure: {report}");

    let too_large = batch.remove(3);
    let arrived = arrived_ids(&harness.arrived(batch.len()).await);
    assert_eq!(sorted(arrived.clone()), sorted(ids(&batch)));
    assert!(!arrived.contains(&too_large.event_id.to_string()));
}

/// A destination that does not exist is no fault of the events, and no outage.
pub async fn an_unknown_destination_is_misconfigured(harness: &dyn PublisherHarness) {
    let Some(publisher) = harness.lost().await else { return not_claimed("a destination that does not exist") };
    for _ in 0..2 {
        let batch = events(5);
        let outcomes = publish(&*publisher, &batch).await;
        assert_all(&outcomes, ErrorKind::Misconfigured);
        for (event, outcome) in batch.iter().zip(outcomes) {
            if let Some(topic) = outcome.expect_err("misconfigured").topic() {
                assert_eq!(topic, publisher.topic(event), "the topic at fault must be the one that the relay knows");
            }
        }
    }
}

/// An event's own header can't replace one of the wire format.
pub async fn a_system_header_wins(harness: &dyn PublisherHarness) {
    let publisher = harness.publisher().await;
    let mut forged = event("one", 1);
    for name in ["event-id", "Aggregate-Id", "CONTENT-TYPE"] {
        forged.headers.insert(name.to_owned(), "forged".to_owned());
    }
    let outcomes = publish(&*publisher, std::slice::from_ref(&forged)).await;
    assert!(outcomes[0].is_ok(), "{outcomes:?}");
    let message = harness.arrived(1).await.remove(0);
    assert_eq!(message.event_id, forged.event_id.to_string());
    assert!(message.headers.values().all(|value| value != "forged"), "{:?}", message.headers);
}
