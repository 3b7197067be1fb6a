//! Sizes and names at the edge of what NATS takes.

use std::collections::BTreeMap;

use outbox_core::{Envelope, ErrorKind, Payload, Publisher};
use outbox_nats::NatsPublisher;
use outbox_testkit::services::nats::Version;

use crate::server::{LINES, Place, arrived_ids, assert_all_ok, error, events, ids, own_with, publish, url};

const MAX_PAYLOAD: usize = 65_536;
/// So that a header with 64 KiB and a subject beside a body fit well.
const MAX_SUBJECT: usize = 4000;

fn set(event: &mut Envelope, name: &str, value: impl Into<String>) {
    event.headers.insert(name.to_owned(), value.into());
}

/// The bytes that a message of the suite takes beside its body, by the report of one that is too large.
async fn header_bytes(publisher: &dyn Publisher, event: &Envelope) -> usize {
    let mut probe = event.clone();
    probe.payload = Payload::bytes(vec![b'x'; MAX_PAYLOAD], "text/plain");
    let report = error(&publish(publisher, &[probe]).await[0]).report();
    let (_, rest) = report.split_once("headers (").unwrap();
    rest.split_once(" bytes)").unwrap().0.parse().unwrap()
}

/// Field report B28: the limit counts header bytes, and one event over it disturbs nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_max_payload_counts_headers_to_the_last_byte() {
    for line in LINES {
        let Some(server) = own_with(line, &format!("max_payload: {MAX_PAYLOAD}\n")) else { return };
        let place = Place::with_stream(&server.url()).await;
        let publisher = place.publisher();
        let mut batch = events(53);
        let headers = header_bytes(&publisher, &batch[0]).await;
        let body = |bytes: usize| Payload::bytes(vec![b'x'; bytes], "text/plain");
        batch[0].payload = body(MAX_PAYLOAD - headers);
        batch[20].payload = body(MAX_PAYLOAD - headers + 1);
        batch[20].aggregate_id = batch[0].aggregate_id.clone();
        batch[30].payload = body(MAX_PAYLOAD - 1000);
        set(&mut batch[30], "padding", "p".repeat(1000));
        let outcomes = publish(&publisher, &batch).await;
        for (index, outcome) in outcomes.iter().enumerate() {
            assert_eq!(outcome.is_err(), matches!(index, 20 | 30), "event {index}: {outcome:?}");
        }
        let text = format!(
            "headers ({headers} bytes) and body take {} bytes, the server's max_payload allows {MAX_PAYLOAD}",
            MAX_PAYLOAD + 1
        );
        assert_eq!((error(&outcomes[20]).kind(), error(&outcomes[20]).report()), (ErrorKind::Rejected, text));
        assert_eq!(error(&outcomes[30]).kind(), ErrorKind::Rejected);
        let kept: Vec<_> = batch.iter().enumerate().filter(|(index, _)| !matches!(index, 20 | 30)).collect();
        assert_eq!(arrived_ids(&place.arrived().await), ids(kept.into_iter().map(|(_, event)| event)));
        let log = std::fs::read_to_string(server.log()).unwrap();
        assert!(!log.contains("maximum payload"), "nothing too large was sent: {log}");
    }
}

/// A limit that is lowered while we are connected costs one connection, then the event is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_max_payload_that_is_lowered_is_learned() {
    let Some(mut server) = own_with(Version::New, "max_payload: 100000\n") else { return };
    let place = Place::with_stream(&server.url()).await;
    let publisher = place.publisher();
    let mut batch = events(2);
    batch[0].payload = Payload::bytes(vec![b'x'; 70_000], "text/plain");
    assert_all_ok(&publish(&publisher, &events(1)).await);
    tokio::task::block_in_place(|| server.reload("max_payload: 65536\n")).unwrap();
    let mut looks = 0;
    loop {
        looks += 1;
        let outcomes = publish(&publisher, &batch).await;
        match error(&outcomes[0]).kind() {
            ErrorKind::Rejected => break,
            ErrorKind::Unconfirmed | ErrorKind::Unavailable => assert!(looks < 4, "{outcomes:?}"),
            other => panic!("{other}: {outcomes:?}"),
        }
    }
    assert_all_ok(&publish(&publisher, &batch[1..]).await);
}

/// Field report B28: the stream's own limit is smaller than the server's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_over_the_streams_own_limit_is_rejected_alone() {
    for line in LINES {
        let Some(url) = url(line) else { return };
        let place = Place::bare(&url).await;
        place.create_stream(|config| config.max_message_size = 5000).await;
        let mut batch = events(51);
        batch[25].payload = Payload::bytes(vec![b'x'; 5001], "text/plain");
        let outcomes = publish(&place.publisher(), &batch).await;
        let error = error(&outcomes[25]);
        assert_eq!((error.kind(), error.topic()), (ErrorKind::Rejected, None));
        assert!(error.report().contains("(10054) (it has 5"), "{}", error.report());
        batch.remove(25);
        assert_eq!(arrived_ids(&place.arrived().await), ids(&batch));
    }
}

/// Field report B32, and one bad event of each kind in a batch of a hundred.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_event_of_a_hundred_is_the_only_one_not_published() {
    for line in LINES {
        let Some(url) = url(line) else { return };
        let place = Place::with_stream(&url).await;
        let config = place.config().with_topic(format!("{}.{{header:last}}", place.prefix));
        let publisher = NatsPublisher::connect(config).unwrap();
        type Spoil = fn(&mut Envelope);
        let kinds: [(Spoil, &str); 9] = [
            (|event| event.payload = Payload::bytes(vec![b'x'; 1_048_577], "text/plain"), "the body has 1048577 bytes"),
            (|event| event.payload = Payload::bytes(vec![b'x'; 1_048_576], "text/plain"), "max_payload allows 1048576"),
            (|event| set(event, "padding", "p".repeat(65_536)), "JetStream allows 65535"),
            (|event| set(event, "bad name", "v"), "the header name `bad name` (8 bytes)"),
            (|event| set(event, "a:b", "v"), "the header name `a:b` (3 bytes)"),
            (|event| set(event, "ключ", "v"), "the header name `ключ` (8 bytes)"),
            (|event| set(event, "", "v"), "a header has an empty name (0 bytes)"),
            (|event| set(event, "last", "s".repeat(MAX_SUBJECT)), "bytes, the broker allows 4000"),
            (|event| set(event, "last", ""), "the topic template needs header `last`"),
        ];
        for (round, (spoil, reason)) in kinds.into_iter().enumerate() {
            let mut batch = events(100);
            batch.iter_mut().for_each(|event| set(event, "last", format!("round{round}")));
            let bad = 7 + round * 9;
            spoil(&mut batch[bad]);
            let outcomes = publish(&publisher, &batch).await;
            for (index, outcome) in outcomes.iter().enumerate() {
                assert_eq!(outcome.is_err(), index == bad, "round {round}, event {index}: {outcome:?}");
            }
            let error = error(&outcomes[bad]);
            assert_eq!(error.kind(), ErrorKind::Rejected);
            assert!(error.report().contains(reason), "{}", error.report());
            batch.remove(bad);
            let arrived = place.arrived().await;
            assert_eq!(arrived_ids(&arrived[round * 99..]), ids(&batch));
        }
    }
}

/// Our limits are the server's: what is just within them passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_subject_and_the_largest_headers_pass() {
    for line in LINES {
        let Some(url) = url(line) else { return };
        let place = Place::with_stream(&url).await;
        let config = place.config().with_topic(format!("{}.{{header:last}}", place.prefix));
        let publisher = NatsPublisher::connect(config).unwrap();
        let mut batch = events(2);
        set(&mut batch[0], "last", "s".repeat(MAX_SUBJECT - place.prefix.len() - 1));
        set(&mut batch[1], "last", "x");
        // The report of one that is a kilobyte too large tells what is left.
        set(&mut batch[1], "padding", "p".repeat(65_535));
        let report = error(&publish(&publisher, &batch[1..]).await[0]).report();
        let (_, rest) = report.split_once("the headers take ").unwrap();
        let bytes: usize = rest.split_once(' ').unwrap().0.parse().unwrap();
        set(&mut batch[1], "padding", "p".repeat(65_535 - (bytes - 65_535)));
        assert_all_ok(&publish(&publisher, &batch).await);
        assert_eq!(arrived_ids(&place.arrived().await), ids(&batch));
    }
}

/// Field reports B32 and B38: nothing in an event becomes a header that it is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_headers_reach_the_consumer_as_data_only() {
    for line in LINES {
        let Some(url) = url(line) else { return };
        let place = Place::with_stream(&url).await;
        let mut batch = events(3);
        let odd = [
            ("injected", "a\r\nNats-Msg-Id: other", "a%0D%0ANats-Msg-Id: other"),
            ("mentions", "x Nats-Msg-Id: other", "x Nats-Msg-Id: other"),
            ("lone", "\r", "%0D"),
            ("null", "\0", "%00"),
            ("emoji", "🦀", "%F0%9F%A6%80"),
            ("blank", " a ", "%20a%20"),
            ("empty", "", ""),
            ("message-id", "own", "own"),
            ("x-death", "own", "own"),
        ];
        for (name, value, _) in odd {
            set(&mut batch[0], name, value);
        }
        set(&mut batch[0], &"n".repeat(300), "v".repeat(10_000));
        for name in ["Nats-Msg-Id", "nats-msg-id", "Orig-Nats-Msg-Id", "Nats-Expected-Last-Sequence", "Nats-Rollup"] {
            set(&mut batch[1], name, "77");
        }
        set(&mut batch[1], "Event-Id", "forged");
        assert_all_ok(&publish(&place.publisher(), &batch).await);
        let arrived = place.arrived().await;
        assert_eq!(arrived_ids(&arrived), ids(&batch), "each under its own id");
        let own = |index: usize| {
            let id = batch[index].event_id.to_string();
            let mut headers = arrived.iter().find(|message| message.event_id == id).unwrap().headers.clone();
            for system in ["event-id", "event-type", "aggregate-type", "aggregate-id", "created-at", "content-type"] {
                headers.remove(system).unwrap();
            }
            headers
        };
        let mut expected: BTreeMap<_, _> =
            odd.iter().map(|(name, _, as_sent)| ((*name).to_owned(), (*as_sent).to_owned())).collect();
        expected.insert("n".repeat(300), "v".repeat(10_000));
        assert_eq!(own(0), expected);
        assert_eq!(own(1), BTreeMap::new());
        assert_eq!(own(2), BTreeMap::new());
    }
}
