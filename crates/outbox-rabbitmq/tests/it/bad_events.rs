//! One bad event among good ones: it is the only one that suffers (field reports B32, B34 and B38, publisher side).

use outbox_core::{Envelope, ErrorKind, Payload};
use outbox_rabbitmq::RabbitMqPublisher;
use outbox_testkit::proxy::FaultProxy;

use crate::broker::{Broker, Kind, arrived_ids, error, events, ids, publish, url};

/// A publisher through a proxy that counts its connections.
async fn counted(broker: &Broker) -> (FaultProxy, RabbitMqPublisher) {
    let place = broker.url.rsplit_once('@').unwrap().1.split('/').next().unwrap();
    let proxy = FaultProxy::start(place).await.unwrap();
    let mut config = broker.config();
    config.url = proxy.url_for(&broker.url);
    (proxy, RabbitMqPublisher::connect(config).unwrap())
}

/// What to do to an event, and what the report must begin with.
type Spoiled = (fn(&mut Envelope), &'static str);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_event_of_each_kind_in_a_hundred_is_rejected_alone_over_one_connection() {
    let Some(url) = url() else { return };
    let broker = Broker::bound(&url, Kind::Quorum).await;
    let (proxy, publisher) = counted(&broker).await;
    let kinds: [Spoiled; 6] = [
        (
            |event| event.payload = Payload::bytes(vec![b'x'; (1 << 20) + 1], "text/plain"),
            "the payload has 1048577 bytes, max_message_bytes allows 1048576",
        ),
        (
            |event| drop(event.headers.insert("n".repeat(300), "v".into())),
            "the header name `nnnnnnnnnnnnnnnnnnnnnnnnnn",
        ),
        (|event| drop(event.headers.insert("Bcc".into(), "elsewhere".into())), "header `Bcc` would change the route"),
        (|event| drop(event.headers.insert("padding".into(), "p".repeat(200_000))), "headers and names take 2003"),
        (|event| event.event_type = "#".repeat(100), "the topic has 306 bytes, the broker allows 255"),
        (
            |event| event.payload = Payload::bytes("x", "t".repeat(256)),
            "the content type `ttttttttttttttttttttttttttttttt",
        ),
    ];
    for (number, (spoil, report)) in kinds.into_iter().enumerate() {
        let mut batch = events(100);
        let at = 13 * (number + 1);
        spoil(&mut batch[at]);
        let outcomes = publish(&publisher, &batch).await;
        let failed: Vec<_> = (0..100).filter(|index| outcomes[*index].is_err()).collect();
        assert_eq!(failed, [at], "{report}");
        let error = error(&outcomes[at]);
        assert_eq!(error.kind(), ErrorKind::Rejected, "{}", error.report());
        assert!(error.report().starts_with(report), "{}", error.report());
        batch.remove(at);
        assert_eq!(arrived_ids(&broker.take().await), ids(&batch), "{report}");
    }
    assert_eq!(proxy.accepted(), 1, "nothing of this may cost the connection");
}

/// AMQP carries header values and names as counted bytes: nothing in them can end a header or begin another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_headers_arrive_as_they_are_and_add_nothing() {
    let Some(url) = url() else { return };
    let broker = Broker::bound(&url, Kind::Classic).await;
    let (proxy, publisher) = counted(&broker).await;
    let long = "v".repeat(70_000);
    let odd: [(&str, &str); 11] = [
        ("injection", "a\r\nevent-id: other"),
        ("lone", "\r"),
        ("nul", "a\0b"),
        ("emoji", "🦀"),
        ("long", &long),
        ("bad name", "v"),
        ("a:b", "v"),
        ("ключ", "v"),
        ("line\r\nname", "v"),
        ("empty", ""),
        ("", "v"),
    ];
    for (name, value) in odd {
        let mut batch = events(3);
        let plain = batch[0].clone();
        batch[1].headers.insert(name.to_owned(), value.to_owned());
        let outcomes = publish(&publisher, &batch).await;
        assert!(outcomes.iter().all(Result::is_ok), "{name:?}: {outcomes:?}");
        let mut arrived = broker.take().await;
        assert_eq!(arrived_ids(&arrived), ids(&batch), "{name:?}");
        let of = |id: &str| arrived.iter().position(|message| message.event_id == id).unwrap();
        let (normal, odd) = (of(&plain.event_id.to_string()), of(&batch[1].event_id.to_string()));
        assert_eq!(arrived[odd].headers.remove(name).as_deref(), Some(value), "{name:?}");
        let names = |at: usize| arrived[at].headers.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(odd), names(normal), "{name:?} adds nothing else");
    }
    assert_eq!(proxy.accepted(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_named_as_the_systems_never_replaces_it() {
    let Some(url) = url() else { return };
    let broker = Broker::bound(&url, Kind::Classic).await;
    let (proxy, publisher) = counted(&broker).await;
    let names = ["message-id", "message_id", "Event-ID", "event-id", "CONTENT-TYPE", "x-death", "Nats-Msg-Id", "type"];
    let batch: Vec<_> = names
        .into_iter()
        .zip(events(8))
        .map(|(name, mut event)| {
            event.headers.insert(name.to_owned(), "forged".to_owned());
            event
        })
        .collect();
    assert!(publish(&publisher, &batch).await.iter().all(Result::is_ok));
    let arrived = broker.take().await;
    assert_eq!(arrived_ids(&arrived), ids(&batch), "the property message_id is the event id");
    for message in arrived {
        assert_eq!(message.headers["event-id"], message.event_id);
        assert_eq!(message.headers["content-type"], "application/json");
        let forged: Vec<_> = message.headers.iter().filter(|(_, value)| *value == "forged").map(|(n, _)| n).collect();
        assert!(forged.iter().all(|name| ["message-id", "message_id", "Nats-Msg-Id", "type"].contains(&name.as_str())));
    }
    assert_eq!(proxy.accepted(), 1);
}
