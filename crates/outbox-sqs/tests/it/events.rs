//! Events at the edge of what SQS takes, among a hundred that it does.

use outbox_core::{ErrorKind, Payload};

use crate::queue::{Kind, Queue, error, events, ids, publish, read, url};

/// One bad event of each kind; field reports B27 and B37.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_events_are_rejected_or_encoded_and_their_neighbours_arrive() {
    let Some(endpoint) = url() else { return };
    for kind in Kind::ALL {
        let queue = Queue::create(&endpoint, kind).await;
        let publisher = queue.publisher();
        let mut batch = events(100);
        let oversize = 1 << 20;
        batch[3].payload = Payload::bytes(vec![b'x'; oversize], "text/plain");
        batch[11].payload = Payload::bytes("", "text/plain");
        batch[17].payload = Payload::bytes("bell \u{7} and \u{b}", "text/plain");
        batch[18].payload = Payload::raw_json("{\"note\":\"\u{ffff}\u{fffe}\"}");
        batch[19].payload = Payload::bytes(vec![0, 0xff], "application/octet-stream");
        batch[31].headers.insert("AWS.trace".into(), "x".into());
        batch[32].headers.insert("two words".into(), "\u{0}\u{ffff}\r\n%".into());
        batch[33].headers.insert("empty".into(), String::new());
        batch[34].headers.insert("n".repeat(257), "long name".into());
        batch[35].headers.extend((0..40).map(|n| (format!("h{n}"), format!("value {n}"))));
        batch[36].headers.insert("bell".into(), "\u{7} 50%".into());
        batch[51].aggregate_id = "a group with blanks".into();
        batch[52].aggregate_id = "\u{17c}\u{f3}\u{142}w".into();
        batch[53].aggregate_id = "x".repeat(255);
        batch[54].aggregate_type = "\u{1}".into();

        let outcomes = publish(&publisher, &batch).await;
        for (index, outcome) in outcomes.iter().enumerate() {
            assert_eq!(outcome.is_err(), [3, 11].contains(&index), "{kind:?} event {index}: {outcome:?}");
        }
        assert_eq!(error(&outcomes[3]).kind(), ErrorKind::Rejected);
        let report = error(&outcomes[3]).report();
        assert!(report.contains("1048576 of body") && report.contains("allows 1048576"), "{report}");
        assert_eq!(error(&outcomes[11]).kind(), ErrorKind::Rejected);

        let mut arrived = Vec::new();
        queue.take_until(&mut arrived, 98).await;
        let sent = batch.iter().enumerate().filter(|(index, _)| ![3, 11].contains(index)).map(|(_, event)| event);
        assert_eq!(crate::queue::arrived_ids(&arrived), ids(sent.clone()));
        for event in sent {
            let id = event.event_id.to_string();
            let message = arrived.iter().find(|message| message.event_id == id).unwrap();
            if event.id != 19 {
                assert_eq!(message.body, *event.payload.data(), "event {}", event.id);
            }
            let format = [
                ("aggregate-id", &event.aggregate_id),
                ("aggregate-type", &event.aggregate_type),
                ("event-type", &event.event_type),
            ];
            for (name, value) in format.into_iter().chain(event.headers.iter().map(|(name, value)| (&**name, value))) {
                assert_eq!(message.headers.get(name), Some(value), "event {}", event.id);
            }
        }
        let escaped = arrived.iter().find(|message| message.event_id == batch[18].event_id.to_string()).unwrap();
        assert_eq!(escaped.body, r#"{"note":"\uffff\ufffe"}"#, "equal JSON, in characters that SQS takes");
    }
}

/// What only a FIFO queue may get, as it comes out of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_and_deduplication_ids_are_those_of_the_event() {
    use aws_sdk_sqs::types::MessageSystemAttributeName::{MessageDeduplicationId, MessageGroupId};
    let Some(endpoint) = url() else { return };
    let mut batch = events(2);
    batch[1].aggregate_id = "a b".into();
    for kind in Kind::ALL {
        let queue = Queue::create(&endpoint, kind).await;
        assert!(publish(&queue.publisher(), &batch).await.iter().all(Result::is_ok));
        let mut seen = Vec::new();
        while seen.len() < 2 {
            seen.extend(queue.take_raw().await);
        }
        for message in &seen {
            let system = message.attributes().unwrap();
            let ids = (system.get(&MessageGroupId), system.get(&MessageDeduplicationId));
            let event_id = read(message).event_id;
            let hashed = "sha256-c8687a08aa5d6ed2044328fa6a697ab8e96dc34291e8c2034ae8c38e6fcc6d65".to_owned();
            let group = if event_id == batch[0].event_id.to_string() { "aggregate-1".to_owned() } else { hashed };
            match kind {
                Kind::Standard => assert_eq!(ids, (None, None)),
                Kind::Fifo => assert_eq!(ids, (Some(&group), Some(&event_id))),
            }
        }
    }
}
