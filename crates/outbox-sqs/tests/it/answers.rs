//! What the publisher makes of answers, and how it bounds itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{ErrorKind, Payload, PublishError, Publisher};
use outbox_sqs::SqsPublisher;

use crate::queue::{error, events, publish, until};
use crate::stub::{Answer, Stub, entry_ids};

const SHORT: Duration = Duration::from_millis(800);

/// Field report B53: of ten, two failed, one is in no list, one id is unknown; the second batch gets no answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partial_failure_is_told_entry_by_entry() {
    let stub = Stub::start(|request| {
        let ids = entry_ids(request);
        if ids.len() == 3 {
            return Answer::Silence;
        }
        let mut answer = Answer::taken(ids.iter().copied().filter(|id| !["1", "4", "7"].contains(id)));
        answer["Successful"].as_array_mut().unwrap().push(Answer::taken(["4711"])["Successful"][0].clone());
        answer["Failed"] = serde_json::json!([
            { "Id": "1", "Code": "InvalidMessageContents", "SenderFault": true, "Message": "not these characters" },
            { "Id": "4", "Code": "InternalError", "SenderFault": false },
        ]);
        Answer::json(&answer)
    })
    .await;
    let config = stub.config().with_request_timeout(SHORT).with_connect_timeout(SHORT);
    let publisher = SqsPublisher::connect(config).unwrap();
    let outcomes = publish(&publisher, &events(13)).await;
    let kinds: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().err().map(PublishError::kind)).collect();
    let expected: Vec<_> = (0..13)
        .map(|index| match index {
            1 => Some(ErrorKind::Rejected),
            4 => Some(ErrorKind::Throttled),
            7 | 10.. => Some(ErrorKind::Unconfirmed),
            _ => None,
        })
        .collect();
    assert_eq!(kinds, expected);
    assert!(error(&outcomes[1]).report().contains("InvalidMessageContents: not these characters"));
    assert_eq!(stub.requests(), 2, "nothing is sent again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_request_is_called_by_its_code_and_never_sent_again() {
    let check = async |answer: Answer, kind: ErrorKind, at_check: ErrorKind, told: &str| {
        let shown = format!("{answer:?}");
        let stub = Stub::start(move |_| answer.clone()).await;
        let config = stub.config().with_request_timeout(SHORT).with_connect_timeout(SHORT);
        let publisher = SqsPublisher::connect(config).unwrap();
        for outcome in publish(&publisher, &events(10)).await {
            assert_eq!(error(&outcome).kind(), kind, "{shown}: {}", error(&outcome).report());
            assert!(error(&outcome).report().contains(told), "{shown}: {}", error(&outcome).report());
            assert_eq!(error(&outcome).topic(), None);
        }
        assert_eq!(stub.requests(), 1, "{shown}");
        let check = publisher.check().await.unwrap_err();
        assert_eq!(check.kind(), at_check, "{shown}: {}", check.report());
        assert_eq!(stub.requests(), 2, "{shown}");
    };
    use ErrorKind::{Misconfigured, Throttled, Unavailable, Unconfirmed};
    let both = |kind| (kind, kind);
    for (answer, (kind, at_check), told) in [
        (Answer::error(400, "com.amazonaws.sqs#QueueDoesNotExist"), both(Misconfigured), "QueueDoesNotExist"),
        (Answer::error(403, "AccessDeniedException"), both(Misconfigured), "AccessDenied"),
        (Answer::error(403, "InvalidClientTokenId"), both(Unavailable), "InvalidClientTokenId"),
        (Answer::error(403, "ExpiredTokenException"), both(Unavailable), "ExpiredToken"),
        (Answer::error(400, "ThrottlingException"), both(Throttled), "as the test says"),
        (Answer::error(400, "com.amazonaws.sqs#RequestThrottled"), both(Throttled), "RequestThrottled"),
        (Answer::error(503, "ServiceUnavailable"), both(Throttled), "ServiceUnavailable"),
        (Answer::Status(503, "<html>".into()), both(Throttled), "503"),
        (Answer::Status(404, "<html>".into()), both(Misconfigured), "404"),
        (Answer::error(500, "InternalFailure"), (Unconfirmed, Unavailable), "InternalFailure"),
        (Answer::Status(502, String::new()), (Unconfirmed, Unavailable), "502"),
        (Answer::Status(200, "<html>".into()), (Unconfirmed, Unavailable), "no answer that tells"),
        (Answer::Broken, (Unconfirmed, Unavailable), "no answer that tells"),
        (Answer::Silence, (Unconfirmed, Unavailable), "no answer within request_timeout (800ms)"),
    ] {
        check(answer, kind, at_check, told).await;
    }
}

/// Some servers refuse a whole batch for one entry. Nothing of it was taken, so each is tried alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_refused_for_one_event_is_sent_one_by_one() {
    let stub = Stub::start(|request| {
        let entries = request["Entries"].as_array().unwrap();
        if entries.iter().any(|entry| entry["MessageBody"] == "poison") {
            return Answer::error(400, "InvalidMessageContents");
        }
        Answer::json(&Answer::taken(entry_ids(request)))
    })
    .await;
    let publisher = SqsPublisher::connect(stub.config()).unwrap();
    let mut batch = events(20);
    batch[13].payload = Payload::bytes("poison", "text/plain");
    let outcomes = publish(&publisher, &batch).await;
    for (index, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome.is_err(), index == 13, "{outcome:?}");
    }
    assert_eq!(error(&outcomes[13]).kind(), ErrorKind::Rejected);
    assert_eq!(stub.requests(), 2 + 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_flight_are_bounded_over_all_calls() {
    let stub = Stub::start(|_| Answer::Held).await;
    let publisher = Arc::new(SqsPublisher::connect(stub.config().with_max_in_flight(3)).unwrap());
    let calls: Vec<_> = (0..4)
        .map(|_| {
            let publisher = Arc::clone(&publisher);
            tokio::spawn(async move { publish(&*publisher, &events(45)).await })
        })
        .collect();
    until(async || stub.requests() == 3).await;
    stub.release();
    for call in calls {
        assert!(call.await.unwrap().iter().all(Result::is_ok));
    }
    assert_eq!((stub.requests(), stub.most_at_once()), (20, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_gets_no_slot_in_time_is_throttled() {
    let stub = Stub::start(|_| Answer::Silence).await;
    let config = stub.config().with_max_in_flight(1).with_request_timeout(SHORT).with_connect_timeout(SHORT);
    let publisher = SqsPublisher::connect(config).unwrap();
    let begun = Instant::now();
    let outcomes = publish(&publisher, &events(40)).await;
    assert!(begun.elapsed() < 4 * SHORT, "twice request_timeout is the promise: {:?}", begun.elapsed());
    let kinds: Vec<_> = outcomes.iter().map(|outcome| error(outcome).kind()).collect();
    assert_eq!(kinds[..10], [ErrorKind::Unconfirmed; 10]);
    // The slot may be free at the last moment for the second batch.
    assert_eq!(kinds[20..], [ErrorKind::Throttled; 20]);
    assert!(error(&outcomes[39]).report().contains("nothing was sent"));
}
