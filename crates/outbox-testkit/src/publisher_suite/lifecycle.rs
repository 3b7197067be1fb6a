//! What a publisher says about itself, dropped calls, and its end.

use std::sync::Arc;

use outbox_core::{ErrorKind, PublishError};

use super::{
    Fault, IMPATIENCE, PATIENCE, PublisherHarness, arrived_ids, assert_all, events, ids, partly_not_claimed, publish,
    publish_all, publish_within,
};

/// The publisher declares what its documentation claims, and its check agrees that the broker is there.
pub async fn capabilities_are_as_claimed(harness: &dyn PublisherHarness) {
    let publisher = harness.publisher().await;
    assert_eq!(publisher.capabilities(), harness.claims());
    publisher.check().await.expect("the broker is well");
    assert!(harness.arrived(0).await.is_empty(), "a check sends no event");
}

/// Calls that are dropped in the middle, as a time-out does, leave a publisher whose later outcomes are right.
pub async fn a_dropped_call_does_no_harm(harness: &dyn PublisherHarness) {
    let publisher = harness.publisher().await;
    for polls in 0..8 {
        let batch = events(150);
        let mut call = Box::pin(publisher.publish(&batch));
        for _ in 0..polls {
            if is_ready_at_once(call.as_mut()).await {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(call);
    }
    let kept = events(200);
    publish_all(&*publisher, &kept).await;
    let arrived = arrived_ids(&harness.arrived(kept.len()).await);
    for id in ids(&kept) {
        assert!(arrived.contains(&id), "confirmed, and yet it never arrived: {id}");
    }
}

async fn is_ready_at_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

/// Closing twice is fine; after it nothing is sent and the check says why.
pub async fn a_closed_publisher_is_unavailable(harness: &dyn PublisherHarness) {
    let publisher = harness.publisher().await;
    let sent = events(3);
    publish_all(&*publisher, &sent).await;
    for _ in 0..2 {
        tokio::time::timeout(PATIENCE, publisher.close()).await.expect("close must be bounded");
    }
    assert_all(&publish(&*publisher, &events(3)).await, ErrorKind::Unavailable);
    assert_eq!(publisher.check().await.map_err(|error| error.kind()), Err(ErrorKind::Unavailable));
    assert_eq!(harness.arrived(3).await.len(), 3);

    let unused = harness.publisher().await;
    tokio::time::timeout(PATIENCE, unused.close()).await.expect("close must be bounded");
    assert_all(&publish(&*unused, &events(1)).await, ErrorKind::Unavailable);
}

/// Calls that are under way when the publisher is closed still get their outcomes: a success has arrived.
pub async fn close_flushes(harness: &dyn PublisherHarness) {
    let publisher = harness.publisher().await;
    publish_all(&*publisher, &events(1)).await;
    let batch = events(500);
    let call = {
        let (publisher, batch) = (Arc::clone(&publisher), batch.clone());
        tokio::spawn(async move { publish(&*publisher, &batch).await })
    };
    tokio::task::yield_now().await;
    tokio::time::timeout(PATIENCE, publisher.close()).await.expect("close must be bounded");
    let outcomes = call.await.expect("the call ends");
    let confirmed = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    let arrived = arrived_ids(&harness.arrived(1 + confirmed).await);
    for (event, outcome) in batch.iter().zip(&outcomes) {
        match outcome {
            Ok(_) => assert!(arrived.contains(&event.event_id.to_string()), "confirmed, and yet it never arrived"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report()),
        }
    }
}

/// Neither `Debug` nor any error shows a secret or a payload.
pub async fn no_secret_is_shown(harness: &dyn PublisherHarness) {
    const MARKER: &str = "payload-that-must-not-be-shown";
    let mut hidden = harness.secrets();
    hidden.push(MARKER.to_owned());
    let mut batch = events(2);
    batch[0].payload = outbox_core::Payload::bytes(MARKER, "text/plain");
    if let Some(max) = harness.claims().max_event_bytes {
        batch[1].payload = outbox_core::Payload::bytes(MARKER.repeat(max / MARKER.len() + 1), "text/plain");
    } else {
        partly_not_claimed("a largest event; its refusal was not looked at");
    }
    let publisher = harness.impatient().await;
    let mut shown = vec![format!("{publisher:?}"), format!("{publisher:#?}")];
    let mut see = |error: &PublishError| shown.extend([format!("{error:?}"), error.to_string(), error.report()]);
    publish(&*publisher, &batch).await.iter().filter_map(|outcome| outcome.as_ref().err()).for_each(&mut see);
    if let Some(lost) = harness.lost().await {
        publish(&*lost, &batch).await.iter().filter_map(|outcome| outcome.as_ref().err()).for_each(&mut see);
        if let Err(error) = lost.check().await {
            see(&error);
        }
    } else {
        partly_not_claimed("a destination that does not exist; its errors were not looked at");
    }
    if harness.set_fault(Fault::Refuse).await {
        let outcomes = publish_within(IMPATIENCE, &*publisher, &batch).await;
        outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).for_each(&mut see);
        if let Err(error) = publisher.check().await {
            see(&error);
        }
    } else {
        partly_not_claimed("faults; their errors were not looked at");
    }
    for text in shown {
        for secret in &hidden {
            assert!(!text.contains(secret.as_str()), "shows `{secret}`: {text}");
        }
    }
}
