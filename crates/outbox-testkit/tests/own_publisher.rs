//! The example of `docs/implementing-a-publisher.md`: a publisher of one's own, and the suite that judges it.

#![allow(clippy::unwrap_used, reason = "what tests share panics as the tests do")]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{ErrorKind as IoKind, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use outbox_core::{Capabilities, Envelope, ErrorKind, PublishError, PublishReport, Publisher, Receipt, rfc3339_micros};
use outbox_testkit::publisher_suite::{Arrived, Fault, PublisherHarness};

/// The largest body; checked before anything is written.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// How long a call may wait for the disk.
const PATIENCE: Duration = Duration::from_secs(10);

/// Appends events to one file: a record is a line of headers, the body, and a line break. Short on purpose: after a
/// full disk it would have to cut off the record that broke off.
#[derive(Debug, Clone)]
struct JournalPublisher {
    path: PathBuf,
    closed: Arc<AtomicBool>,
}

impl JournalPublisher {
    fn new(path: PathBuf) -> Self {
        Self { path, closed: Arc::default() }
    }
}

#[async_trait]
impl Publisher for JournalPublisher {
    fn capabilities(&self) -> Capabilities {
        Capabilities::CAUTIOUS.with_max_event_bytes(MAX_EVENT_BYTES)
    }

    fn topic<'a>(&'a self, _event: &'a Envelope) -> Cow<'a, str> {
        Cow::Borrowed("journal")
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        let mut report = PublishReport::unfilled(events.len());
        let (mut indices, mut records) = (Vec::new(), Vec::new());
        for (index, event) in events.iter().enumerate() {
            match encode(event, &mut records) {
                Ok(()) => indices.push(index),
                Err(error) => report.set(index, Err(error)),
            }
        }
        if indices.is_empty() {
            return report; // no I/O for nothing
        }
        let outcome = match self.check().await {
            Err(error) => Err(error), // nothing was sent: the check's kind holds
            Ok(()) => {
                let path = self.path.clone();
                let write = tokio::task::spawn_blocking(move || {
                    let mut file = OpenOptions::new().append(true).open(path)?;
                    file.write_all(&records)?;
                    file.sync_data() // the confirmation: not before it is durable
                });
                // From here on a part may be on the disk, so every other end is `Unconfirmed`.
                match tokio::time::timeout(PATIENCE, write).await {
                    Ok(Ok(Ok(()))) => Ok(Receipt::confirmed()),
                    Ok(Ok(Err(error))) => Err(unconfirmed("the journal can't be written").with_source(error)),
                    Ok(Err(panicked)) => Err(unconfirmed("the writer ended early").with_source(panicked)),
                    Err(_) => Err(unconfirmed("the disk did not answer in time")),
                }
            }
        };
        for index in indices {
            report.set(index, outcome.clone());
        }
        report
    }

    async fn check(&self) -> Result<(), PublishError> {
        if self.closed.load(SeqCst) {
            return Err(PublishError::new(ErrorKind::Unavailable, "the publisher is closed"));
        }
        let (path, refused) =
            (self.path.clone(), |kind, error| PublishError::new(kind, "the journal").with_source(error));
        match tokio::task::spawn_blocking(move || OpenOptions::new().append(true).open(path)).await {
            Ok(Ok(_)) => Ok(()),
            // Missing or forbidden is for an operator to mend; everything else passes by itself.
            Ok(Err(error)) if matches!(error.kind(), IoKind::NotFound | IoKind::PermissionDenied) => {
                Err(refused(ErrorKind::Misconfigured, error))
            }
            Ok(Err(error)) => Err(refused(ErrorKind::Unavailable, error)),
            Err(panicked) => Err(refused(ErrorKind::Unavailable, panicked.into())),
        }
    }

    async fn close(&self) {
        self.closed.store(true, SeqCst); // each call syncs what it confirms, so nothing is left to flush
    }
}

fn unconfirmed(detail: &str) -> PublishError {
    PublishError::new(ErrorKind::Unconfirmed, detail)
}

/// Pure: what can't be sent is found here, before any I/O.
fn encode(event: &Envelope, records: &mut Vec<u8>) -> Result<(), PublishError> {
    let rejected = |detail: String| PublishError::new(ErrorKind::Rejected, detail);
    let body = event.payload.data();
    if body.len() > MAX_EVENT_BYTES {
        return Err(rejected(format!("the payload has {} bytes, {MAX_EVENT_BYTES} are allowed", body.len())));
    }
    let system = [
        ("event-id", event.event_id.to_string()),
        ("event-type", event.event_type.clone()),
        ("aggregate-type", event.aggregate_type.clone()),
        ("aggregate-id", event.aggregate_id.clone()),
        ("created-at", rfc3339_micros(event.created_at)),
        ("content-type", event.payload.content_type().to_owned()),
        ("length", body.len().to_string()),
    ];
    let is_system = |name: &str| system.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
    let own = event.headers.iter().filter(|(name, _)| !is_system(name)); // system names win
    let mut headers: BTreeMap<&str, &str> = own.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    headers.extend(system.iter().map(|(name, value)| (*name, value.as_str())));
    let line = serde_json::to_vec(&headers).map_err(|error| rejected("the headers".to_owned()).with_source(error))?;
    for part in [line.as_slice(), b"\n", body, b"\n"] {
        records.extend_from_slice(part);
    }
    Ok(())
}

struct Journal {
    directory: tempfile::TempDir,
}

impl Journal {
    fn path(&self) -> PathBuf {
        self.directory.path().join("journal")
    }
}

#[async_trait]
impl PublisherHarness for Journal {
    fn claims(&self) -> Capabilities {
        Capabilities::CAUTIOUS.with_max_event_bytes(MAX_EVENT_BYTES)
    }

    async fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(JournalPublisher::new(self.path()))
    }

    async fn impatient(&self) -> Arc<dyn Publisher> {
        self.publisher().await
    }

    async fn lost(&self) -> Option<Arc<dyn Publisher>> {
        Some(Arc::new(JournalPublisher::new(self.directory.path().join("missing"))))
    }

    async fn arrived(&self, _count: usize) -> Vec<Arrived> {
        let journal = std::fs::read(self.path()).unwrap();
        let (mut rest, mut arrived) = (journal.as_slice(), Vec::new());
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let headers: BTreeMap<String, String> = serde_json::from_slice(&rest[..end]).unwrap();
            // A record that is being written has no line break at its end yet.
            let Some((body, after)) = rest[end + 1..].split_at_checked(headers["length"].parse().unwrap()) else {
                break;
            };
            let Some(after) = after.strip_prefix(b"\n") else { break };
            let (event_id, body) = (headers["event-id"].clone(), Bytes::copy_from_slice(body));
            arrived.push(Arrived { event_id, headers, body });
            rest = after;
        }
        arrived
    }

    async fn set_fault(&self, _fault: Fault) -> bool {
        false // not claimed; with a broker, put an `outbox_testkit::proxy::FaultProxy` in front of it
    }

    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }
}

fn journal() -> std::future::Ready<Option<Journal>> {
    let journal = Journal { directory: tempfile::tempdir().unwrap() };
    std::fs::write(journal.path(), "").unwrap();
    std::future::ready(Some(journal))
}

mod contract {
    outbox_testkit::publisher_suite!(super::journal);
}
