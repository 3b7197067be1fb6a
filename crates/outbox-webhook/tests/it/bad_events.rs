//! One bad event of each kind among good ones.

use outbox_core::{ErrorKind, Payload};

use crate::events::{events, id, kinds, publish, publisher};
use crate::receiver::{Receiver, Reply, SECRET};

/// B32 and the kinds that only webhooks have: the bad ones are told with their figures, all others arrive, and nobody
/// sees a header that the event made up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_others_of_a_batch_of_100_arrive() {
    let receiver = Receiver::start().await;
    let mut batch = events(100);
    batch[10].payload = Payload::bytes(vec![b'x'; (1 << 20) + 1], "text/plain");
    batch[20].headers.insert("bad name".into(), "v".into());
    batch[30].headers.insert("note".into(), "a\r\nwebhook-id: other\r\n\r\nGET / HTTP/1.1".into());
    batch[40].headers.insert("long".into(), "v".repeat(20_000));
    batch[50].aggregate_id = "refused".into();
    batch[60].aggregate_id = "..".into();
    batch[70].headers.insert("Transfer-Encoding".into(), "chunked".into());
    batch[80].headers.insert("Content-Length".into(), "3".into());
    receiver.answer(|received| Reply::status(if received.path == "/refused" { 400 } else { 204 }));
    let publisher = publisher(receiver.url("/{aggregate_id}"));
    let outcomes = publish(&publisher, &batch).await;

    let mut expected = [Ok(()); 100];
    for rejected in [10, 20, 40, 60] {
        expected[rejected] = Err(ErrorKind::Rejected);
    }
    expected[50] = Err(ErrorKind::Failed);
    assert_eq!(kinds(&outcomes), expected);
    let report = |at: usize| outcomes[at].as_ref().unwrap_err().report();
    assert!(report(10).contains("1048577 bytes, max_message_bytes allows 1048576"), "{}", report(10));
    assert!(report(20).contains("\"bad name\" of 8 bytes is none in HTTP"), "{}", report(20));
    assert!(report(40).contains("16384 are allowed"), "{}", report(40));
    assert!(report(50).contains("answered 400 Bad Request"), "{}", report(50));

    let received = receiver.received();
    let mut arrived = receiver.ids();
    arrived.sort_unstable();
    let mut sent: Vec<_> = (0..100).filter(|at| ![10, 20, 40, 60].contains(at)).map(|at| id(&batch[at])).collect();
    sent.sort_unstable();
    assert_eq!(arrived, sent);
    assert!(received.iter().all(|request| request.is_signed_by(SECRET)));
    let injected = received.iter().find(|request| request.id() == id(&batch[30])).unwrap();
    assert_eq!(injected.headers["note"], "a%0D%0Awebhook-id:%20other%0D%0A%0D%0AGET%20/%20HTTP/1.1");
    assert_eq!(injected.headers.get_all("webhook-id").iter().count(), 1);
    for at in [70, 80] {
        let request = received.iter().find(|request| request.id() == id(&batch[at])).unwrap();
        assert!(!request.headers.contains_key("transfer-encoding"));
        assert_eq!(request.headers["content-length"], request.body.len().to_string().as_str());
    }
}

/// B38: an event can't take the place of what identifies or secures a request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_headers_do_not_arrive() {
    let receiver = Receiver::start().await;
    let mut batch = events(1);
    for name in ["Webhook-Id", "WEBHOOK-SIGNATURE", "webhook-timestamp", "Event-Id", "Host", "Authorization", "Cookie"]
    {
        batch[0].headers.insert(name.into(), "forged".into());
    }
    batch[0].headers.insert("x-mine".into(), "kept".into());
    publish(&publisher(receiver.url("/")), &batch).await.remove(0).unwrap();
    let request = receiver.received().remove(0);
    assert!(request.is_signed_by(SECRET));
    assert_eq!(request.id(), id(&batch[0]));
    assert_eq!(request.headers["x-mine"], "kept");
    assert!(request.headers.values().all(|value| value != "forged"), "{:?}", request.headers);
}
