//! A broker that is away, hangs, or whose answers are lost.

use outbox_core::ErrorKind;

use super::{
    Fault, IMPATIENCE, PublisherHarness, arrived_ids, assert_all, events, ids, not_claimed, publish_all,
    publish_until_confirmed, publish_within, sorted,
};

/// With the broker away from the start nothing is sent, each event says so in time, and so does the check.
pub async fn a_broker_that_is_away_is_unavailable(harness: &dyn PublisherHarness) {
    if !harness.set_fault(Fault::Refuse).await {
        return not_claimed("faults");
    }
    let publisher = harness.impatient().await;
    assert_all(&publish_within(IMPATIENCE, &*publisher, &events(20)).await, ErrorKind::Unavailable);
    let error = publisher.check().await.expect_err("the broker is away");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    harness.set_fault(Fault::None).await;
    let batch = events(1);
    publish_until_confirmed(&*publisher, &batch[0]).await;
    assert_eq!(arrived_ids(&harness.arrived(1).await), ids(&batch), "nothing was sent while the broker was away");
}

/// When the broker goes away the first call may not know yet whether it sent anything; once the check has failed
/// nothing is sent any more.
pub async fn a_broker_that_goes_away_is_never_a_success(harness: &dyn PublisherHarness) {
    let publisher = harness.impatient().await;
    publish_all(&*publisher, &events(3)).await;
    if !harness.set_fault(Fault::Refuse).await {
        return not_claimed("faults");
    }
    for outcome in publish_within(IMPATIENCE, &*publisher, &events(20)).await {
        let kind = outcome.expect_err("the broker is away").kind();
        assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::Unconfirmed), "{kind}");
    }
    publisher.check().await.expect_err("the broker is away");
    assert_all(&publish_within(IMPATIENCE, &*publisher, &events(20)).await, ErrorKind::Unavailable);
}

/// Events that arrive while their answers are lost are unconfirmed, each of them.
pub async fn a_cut_reply_is_unconfirmed(harness: &dyn PublisherHarness) {
    let publisher = harness.impatient().await;
    let mut sent = events(1);
    publish_all(&*publisher, &sent).await;
    if !harness.set_fault(Fault::CutReplies).await {
        return not_claimed("faults");
    }
    let batch = events(20);
    assert_all(&publish_within(IMPATIENCE, &*publisher, &batch).await, ErrorKind::Unconfirmed);
    sent.extend(batch);
    assert_eq!(sorted(arrived_ids(&harness.arrived(sent.len()).await)), sorted(ids(&sent)), "they did arrive");
}

/// A broker that hangs with its connections open: unconfirmed, and in time.
pub async fn a_broker_that_hangs_is_unconfirmed_in_time(harness: &dyn PublisherHarness) {
    let publisher = harness.impatient().await;
    publish_all(&*publisher, &events(1)).await;
    if !harness.set_fault(Fault::Blackhole).await {
        return not_claimed("faults");
    }
    assert_all(&publish_within(IMPATIENCE, &*publisher, &events(20)).await, ErrorKind::Unconfirmed);
    let check = tokio::time::timeout(IMPATIENCE, publisher.check()).await.expect("the check must be bounded");
    assert_eq!(check.expect_err("the broker hangs").kind(), ErrorKind::Unavailable);
}

/// After each fault the same publisher goes on, and what was sent before is not confused with what comes after.
pub async fn it_recovers_without_being_rebuilt(harness: &dyn PublisherHarness) {
    let publisher = harness.impatient().await;
    let mut confirmed = events(1);
    publish_all(&*publisher, &confirmed).await;
    for fault in [Fault::Refuse, Fault::CutReplies, Fault::Blackhole] {
        if !harness.set_fault(fault).await {
            return not_claimed("faults");
        }
        for outcome in publish_within(IMPATIENCE, &*publisher, &events(5)).await {
            outcome.expect_err("nothing can be confirmed now");
        }
        harness.set_fault(Fault::None).await;
        let after = events(20);
        for event in &after {
            publish_until_confirmed(&*publisher, event).await;
        }
        confirmed.extend(after);
    }
    let arrived = arrived_ids(&harness.arrived(confirmed.len()).await);
    for id in ids(&confirmed) {
        assert!(arrived.contains(&id), "confirmed, and yet it never arrived: {id}");
    }
}
