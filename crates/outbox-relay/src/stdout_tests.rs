use std::collections::VecDeque;
use std::sync::mpsc;
use std::time::SystemTime;

use outbox_core::{EventId, Headers};

use super::*;

fn event(aggregate_id: &str, payload: Payload) -> Envelope {
    Envelope {
        id: 7,
        event_id: EventId::from_uuid(uuid::Uuid::from_u128(1)),
        aggregate_type: "order".into(),
        aggregate_id: aggregate_id.into(),
        event_type: "order.placed".into(),
        payload,
        headers: Headers::from([("tenant".into(), "\"ż\"".into())]),
        created_at: SystemTime::UNIX_EPOCH,
    }
}

fn json(aggregate_id: &str) -> Envelope {
    event(aggregate_id, Payload::raw_json("{}"))
}

/// A writer that does what its script says, one entry a call: take that many bytes, or fail.
#[derive(Clone, Default)]
struct Scripted {
    script: Arc<Mutex<VecDeque<Result<usize, io::ErrorKind>>>>,
    flush: Arc<Mutex<Option<io::ErrorKind>>>,
    text: Arc<Mutex<Vec<u8>>>,
}

impl Scripted {
    fn new(script: &[Result<usize, io::ErrorKind>]) -> Self {
        Self { script: Arc::new(Mutex::new(script.iter().copied().collect())), ..Self::default() }
    }
    fn text(&self) -> String {
        String::from_utf8(self.text.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Scripted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let step = self.script.lock().unwrap().pop_front().unwrap_or(Ok(usize::MAX));
        let count = step?.min(bytes.len());
        self.text.lock().unwrap().extend_from_slice(&bytes[..count]);
        Ok(count)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.flush.lock().unwrap().map_or(Ok(()), |kind| Err(kind.into()))
    }
}

fn kinds(report: PublishReport, events: usize) -> Vec<&'static str> {
    let name = |outcome: outbox_core::Outcome| outcome.map_or_else(|error| error.kind().as_str(), |_| "ok");
    report.into_outcomes(events).into_iter().map(name).collect()
}

#[tokio::test]
async fn golden_lines() {
    let check = async |payload: Payload, tail: &str| {
        let out = Scripted::default();
        let publisher = StdoutPublisher::to_writer(out.clone());
        let report = publisher.publish(&[event("a\n1", payload.clone())]).await;
        assert_eq!(kinds(report, 1), ["ok"]);
        let head = r#"{"event_id":"00000000-0000-0000-0000-000000000001","event_type":"order.placed","#.to_owned()
            + r#""aggregate_type":"order","aggregate_id":"a\n1","created_at":"1970-01-01T00:00:00.000000Z","#;
        assert_eq!(out.text(), format!("{head}{tail}\n"));
        serde_json::from_str::<&RawValue>(&out.text()).unwrap();
    };
    let headers = r#""headers":{"tenant":"\"ż\""}"#;
    let as_json = format!(r#""content_type":"application/json",{headers},"payload":"#);
    let check_json = async |text: &str, line: &str| {
        check(Payload::raw_json(text.to_owned()), &format!("{as_json}{line}}}")).await;
    };
    check_json(r#"{"b":1.10,"a":1e400,"a":"é\n"}"#, r#"{"b":1.10,"a":1e400,"a":"é\n"}"#).await;
    check_json("{\n  \"id\": 9007199254740993\r\n}\n", "{   \"id\": 9007199254740993  }").await;
    check_json("null", "null").await;
    let nested = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    let out = Scripted::default();
    let publisher = StdoutPublisher::to_writer(out.clone());
    assert_eq!(kinds(publisher.publish(&[event("1", Payload::raw_json(nested.clone()))]).await, 1), ["ok"]);
    assert!(out.text().contains(&nested));
    check(
        Payload::Bytes { data: vec![0, 255, 10].into(), content_type: None },
        &format!(r#""content_type":"application/octet-stream",{headers},"payload_base64":"AP8K"}}"#),
    )
    .await;
}

#[tokio::test]
async fn outcomes_tell_what_went_out() {
    let check = async |script: &[Result<usize, io::ErrorKind>], expected: [&str; 3], whole_lines: usize| {
        let out = Scripted::new(script);
        let publisher = StdoutPublisher::to_writer(out.clone());
        let report = publisher.publish(&[json("1"), json("2"), json("3")]).await;
        assert_eq!(kinds(report, 3), expected, "{script:?}");
        assert_eq!(out.text().matches('\n').count(), whole_lines);
        // The next call works again, and what broke off does not swallow its first line.
        assert_eq!(kinds(publisher.publish(&[json("4")]).await, 1), ["ok"]);
        let text = out.text();
        let last = text.lines().last().unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(last).unwrap()["aggregate_id"], "4");
    };
    const ALL: Result<usize, io::ErrorKind> = Ok(usize::MAX);
    let broken = Err(io::ErrorKind::BrokenPipe);
    check(&[], ["ok", "ok", "ok"], 3).await;
    check(&[Ok(3), Err(io::ErrorKind::Interrupted), ALL], ["ok", "ok", "ok"], 3).await;
    check(&[broken], ["unavailable", "unavailable", "unavailable"], 0).await;
    check(&[ALL, broken], ["ok", "unavailable", "unavailable"], 1).await;
    check(&[ALL, Ok(5), broken], ["ok", "unconfirmed", "unavailable"], 1).await;
    check(&[ALL, Ok(5), Ok(0)], ["ok", "unconfirmed", "unavailable"], 1).await;
}

#[tokio::test]
async fn a_failed_flush_confirms_nothing() {
    let out = Scripted::default();
    *out.flush.lock().unwrap() = Some(io::ErrorKind::StorageFull);
    let publisher = StdoutPublisher::to_writer(out);
    let report = publisher.publish(&[json("1"), json("2")]).await;
    assert_eq!(kinds(report, 2), ["unconfirmed", "unavailable"]);
}

#[tokio::test]
async fn a_payload_that_is_no_json_is_rejected_alone() {
    let out = Scripted::default();
    let publisher = StdoutPublisher::to_writer(out.clone());
    let bad = |aggregate: &str, text: &'static str| event(aggregate, Payload::raw_json(text));
    let report = publisher.publish(&[json("1"), bad("2", "1,2"), bad("4", ""), json("3")]).await;
    assert_eq!(kinds(report, 4), ["ok", "rejected", "rejected", "ok"]);
    assert_eq!(out.text().lines().count(), 2);
}

#[tokio::test]
async fn nothing_of_an_aggregate_is_written_after_its_event_that_is_rejected() {
    let out = Scripted::default();
    let publisher = StdoutPublisher::to_writer(out.clone());
    let bad = event("1", Payload::raw_json("1,2"));
    let report = publisher.publish(&[json("1"), bad.clone(), json("1"), json("2"), bad, json("1")]).await;
    assert_eq!(kinds(report, 6), ["ok", "rejected", "unavailable", "ok", "unavailable", "unavailable"]);
    assert_eq!(out.text().lines().count(), 2);
    assert_eq!(kinds(publisher.publish(&[json("1")]).await, 1), ["ok"], "decided meanwhile");
}

#[path = "stdout_contract_tests.rs"]
mod contract;

#[tokio::test]
async fn after_close_nothing_is_written() {
    let out = Scripted::default();
    let publisher = StdoutPublisher::to_writer(out.clone());
    publisher.close().await;
    publisher.close().await;
    assert_eq!(kinds(publisher.publish(&[json("1")]).await, 1), ["unavailable"]);
    assert!(publisher.check().await.is_err());
    assert_eq!(out.text(), "");
}

/// A writer that blocks in its second line until told to go on.
struct Blocking {
    inner: Scripted,
    calls: usize,
    entered: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
}

impl Write for Blocking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.calls += 1;
        if self.calls == 2 {
            self.entered.send(()).unwrap();
            self.go_on.recv().unwrap();
        }
        self.inner.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_reader_that_does_not_read_blocks_neither_the_runtime_nor_the_truth() {
    let out = Scripted::default();
    let (entered, has_entered) = mpsc::channel();
    let (let_go, go_on) = mpsc::channel();
    let blocking = Blocking { inner: out.clone(), calls: 0, entered, go_on };
    let publisher = StdoutPublisher::to_writer(blocking).with_timeout(Duration::from_millis(50));
    // One thread runs this test: were it blocked, the time-out could not end the call.
    let report = publisher.publish(&[json("1"), json("2"), json("3")]).await;
    assert_eq!(kinds(report, 3), ["ok", "unconfirmed", "unavailable"]);
    has_entered.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(publisher.check().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(kinds(publisher.publish(&[json("2")]).await, 1), ["unavailable"]);
    let_go.send(()).unwrap();
    let publisher = publisher.with_timeout(Duration::from_secs(10));
    publisher.check().await.unwrap();
    // The line that was under way came, the one that was not begun did not.
    assert_eq!(out.text().lines().count(), 2);
}
