//! The publisher `stdout`: JSON lines, for development and for pipes.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outbox_core::rfc3339_micros;
use outbox_core::{Capabilities, Envelope, ErrorKind, Payload, PublishError, PublishReport, Publisher, Receipt};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::Mutex as AsyncMutex;

/// Writes each event as one line of JSON.
///
/// Fields, in this order: `event_id`, `event_type`, `aggregate_type`, `aggregate_id`, `created_at` (RFC 3339, UTC,
/// six digits), `content_type`, `headers` (object of strings), and either `payload` or `payload_base64`.
///
/// `payload` is the stored JSON text itself, so digits, key order and duplicate keys stay. Only white space differs:
/// what surrounds the value is cut, and line breaks between its tokens become spaces, since an event is one line.
/// (Inside a JSON string a raw line break can't occur.)
///
/// # What a confirmation means
/// The operating system took all bytes of the line. Who reads the other end of a pipe may still lose them; this is
/// no durable broker.
///
/// # Errors
/// | what happened | kind |
/// |---|---|
/// | the line was not begun: closed pipe, full disk, a reader that does not read | `Unavailable` |
/// | part of the line was written, or the flush failed | `Unconfirmed` |
/// | the payload is not the text of one JSON value | `Rejected` |
///
/// A line that broke off is followed by a line break and later by its copy; readers skip what they can't parse.
///
/// # Order
/// Lines are written in the order of the slice and nothing after the first line that fails. After an event that is
/// `Rejected`, those of the same aggregate in the same call are not begun (`Unavailable`).
///
/// # Cancel safety
/// Writing happens beside the runtime. When the future is dropped, a line that is being written may still appear,
/// none after it; the next call waits for it.
pub struct StdoutPublisher {
    out: Arc<AsyncMutex<Out>>,
    closed: AtomicBool,
    timeout: Duration,
}

struct Out {
    writer: Box<dyn Write + Send>,
    /// The last line broke off: begin the next one with a line break.
    torn: bool,
}

impl StdoutPublisher {
    /// How long one call may wait for a reader that does not read: shorter than the relay's default
    /// `publish_timeout` (30 s), so that the publisher itself still says which lines went out.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

    /// Writes to the standard output of the process, past the buffer of [`std::io::stdout`], so that a line counts
    /// as written only when the operating system has it.
    ///
    /// # Errors
    /// When the standard output is closed.
    pub fn new() -> io::Result<Self> {
        #[cfg(unix)]
        let file = {
            use std::os::fd::AsFd;
            std::fs::File::from(io::stdout().as_fd().try_clone_to_owned()?)
        };
        #[cfg(windows)]
        let file = {
            use std::os::windows::io::AsHandle;
            std::fs::File::from(io::stdout().as_handle().try_clone_to_owned()?)
        };
        Ok(Self::to_writer(file))
    }

    /// Writes to any writer. It may block; it is flushed before anything is confirmed.
    pub fn to_writer(writer: impl Write + Send + 'static) -> Self {
        let out = Out { writer: Box::new(writer), torn: false };
        Self { out: Arc::new(AsyncMutex::new(out)), closed: AtomicBool::new(false), timeout: Self::DEFAULT_TIMEOUT }
    }

    /// How long one call may wait for the reader. Low: a short pause of the reader pauses the route. High: a stuck
    /// reader is noticed late. Default [`Self::DEFAULT_TIMEOUT`].
    #[must_use]
    pub const fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    async fn lock(&self) -> Result<tokio::sync::OwnedMutexGuard<Out>, PublishError> {
        let closed = || PublishError::new(ErrorKind::Unavailable, "the publisher is closed");
        if self.closed.load(Relaxed) {
            return Err(closed());
        }
        let guard = tokio::time::timeout(self.timeout, Arc::clone(&self.out).lock_owned()).await;
        let guard = guard.map_err(|_| stuck(self.timeout))?;
        if self.closed.load(Relaxed) { Err(closed()) } else { Ok(guard) }
    }
}

impl fmt::Debug for StdoutPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StdoutPublisher").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

#[async_trait]
impl Publisher for StdoutPublisher {
    fn capabilities(&self) -> Capabilities {
        Capabilities::CAUTIOUS.keeping_order_in_batch()
    }

    fn topic<'a>(&'a self, _event: &'a Envelope) -> Cow<'a, str> {
        Cow::Borrowed("stdout")
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        let mut report = PublishReport::unfilled(events.len());
        if events.is_empty() {
            return report;
        }
        let out = match self.lock().await {
            Ok(out) => out,
            Err(error) => return PublishReport::all_failed(events.len(), &error),
        };
        let mut lines = Vec::with_capacity(events.len());
        let mut held_back = HashSet::new();
        for (index, event) in events.iter().enumerate() {
            let aggregate = (event.aggregate_type.as_str(), event.aggregate_id.as_str());
            match encode(event) {
                _ if held_back.contains(&aggregate) => report.set(index, Err(out_of_turn())),
                Ok(line) => lines.push((index, line)),
                Err(error) => {
                    held_back.insert(aggregate);
                    report.set(index, Err(error));
                }
            }
        }
        let indices: Vec<usize> = lines.iter().map(|(index, _)| *index).collect();
        let progress = StopOnDrop(Arc::new(Mutex::new(Progress::default())));
        let shared = Arc::clone(&progress.0);
        let writing = tokio::task::spawn_blocking(move || out.write_lines(&lines, &shared));
        let stop = match tokio::time::timeout(self.timeout, writing).await {
            Ok(Ok(stop)) => stop,
            Ok(Err(_panicked)) => Some(PublishError::new(ErrorKind::Unavailable, "the writer panicked")),
            Err(_elapsed) => Some(stuck(self.timeout)),
        };
        let progress = progress.stop();
        for (place, index) in indices.into_iter().enumerate() {
            let outcome = match &stop {
                _ if place < progress.flushed => Ok(Receipt::confirmed()),
                _ if place < progress.begun => Err(unconfirmed(stop.as_ref())),
                Some(error) => Err(error.clone()),
                None => continue, // can't be: without an error all lines are flushed; unfilled is unconfirmed
            };
            report.set(index, outcome);
        }
        report
    }

    async fn check(&self) -> Result<(), PublishError> {
        // Whether a pipe has a reader shows only at the next line; that nobody is stuck in it shows here.
        self.lock().await.map(drop)
    }

    async fn close(&self) {
        self.closed.store(true, Relaxed);
        // Each call flushes what it confirms, so nothing is left to flush; wait for the call that is under way.
        let _ = tokio::time::timeout(self.timeout, self.out.lock()).await;
    }
}

/// How far the writing thread has come, in lines. `flushed <= begun`.
#[derive(Debug, Default, Clone, Copy)]
struct Progress {
    begun: usize,
    flushed: usize,
    /// The caller waits no longer: begin no further line.
    stopped: bool,
}

/// Stops the writing thread when the caller goes away, so that no line of a dropped call follows later.
struct StopOnDrop(Arc<Mutex<Progress>>);

impl StopOnDrop {
    fn stop(&self) -> Progress {
        let mut progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        progress.stopped = true;
        *progress
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.stop();
    }
}

trait WriteLines {
    fn write_lines(self, lines: &[(usize, Vec<u8>)], progress: &Mutex<Progress>) -> Option<PublishError>;
}

impl WriteLines for tokio::sync::OwnedMutexGuard<Out> {
    /// Writes line by line, each flushed; `None` when all went well, otherwise why it ended early.
    fn write_lines(mut self, lines: &[(usize, Vec<u8>)], progress: &Mutex<Progress>) -> Option<PublishError> {
        let with = |change: &dyn Fn(&mut Progress)| {
            let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
            change(&mut progress);
            progress.stopped
        };
        for (place, (_, line)) in lines.iter().enumerate() {
            // Under one lock: either the caller sees this line as begun, or it is not begun.
            if with(&|progress| progress.begun += usize::from(!progress.stopped)) {
                return None;
            }
            if let Err((written, error)) = self.write_line(line) {
                if written == 0 {
                    with(&|progress| progress.begun = place);
                }
                let detail = "the output can't be written";
                return Some(PublishError::new(ErrorKind::Unavailable, detail).with_source(error));
            }
            with(&|progress| progress.flushed = place + 1);
        }
        None
    }
}

impl Out {
    /// Writes one line with its line break and flushes it; on failure tells how many bytes of it may be out.
    fn write_line(&mut self, line: &[u8]) -> Result<(), (usize, io::Error)> {
        if self.torn {
            self.write_all(b"\n").map_err(|(_, error)| (0, error))?;
            self.torn = false;
        }
        self.write_all(line).inspect_err(|(written, _)| self.torn = *written > 0)?;
        self.writer.flush().map_err(|error| (line.len(), error))
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        let mut written = 0;
        while written < bytes.len() {
            match self.writer.write(&bytes[written..]) {
                Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err((written, error)),
            }
        }
        Ok(())
    }
}

fn stuck(timeout: Duration) -> PublishError {
    PublishError::new(ErrorKind::Unavailable, format!("the reader of the output did not read for {timeout:?}"))
}

/// For what comes after an event that can't be written: whether that one is given up or waits is not decided yet.
fn out_of_turn() -> PublishError {
    PublishError::new(ErrorKind::Unavailable, "not begun: an earlier event of its aggregate can't be written")
}

fn unconfirmed(cause: Option<&PublishError>) -> PublishError {
    let why = cause.map_or_else(String::new, |error| format!(": {}", error.report()));
    PublishError::new(ErrorKind::Unconfirmed, format!("the line was begun and may have been written{why}"))
}

#[derive(Serialize)]
struct Line<'a> {
    event_id: outbox_core::EventId,
    event_type: &'a str,
    aggregate_type: &'a str,
    aggregate_id: &'a str,
    created_at: String,
    content_type: &'a str,
    headers: &'a outbox_core::Headers,
}

/// One event as one line, line break included.
fn encode(event: &Envelope) -> Result<Vec<u8>, PublishError> {
    let rejected = |detail: &str| PublishError::new(ErrorKind::Rejected, detail);
    let head = Line {
        event_id: event.event_id,
        event_type: &event.event_type,
        aggregate_type: &event.aggregate_type,
        aggregate_id: &event.aggregate_id,
        created_at: rfc3339_micros(event.created_at),
        content_type: event.payload.content_type(),
        headers: &event.headers,
    };
    let mut line =
        serde_json::to_vec(&head).map_err(|error| rejected("the event can't be written as JSON").with_source(error))?;
    line.pop(); // the closing brace: the payload follows
    match &event.payload {
        Payload::Json(json) => {
            let value: &RawValue =
                serde_json::from_slice(json).map_err(|_| rejected("the payload is not the text of one JSON value"))?;
            line.extend_from_slice(b",\"payload\":");
            line.extend(value.get().bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
        }
        Payload::Bytes { data, .. } => {
            line.extend_from_slice(b",\"payload_base64\":\"");
            line.extend_from_slice(STANDARD.encode(data).as_bytes());
            line.push(b'"');
        }
    }
    line.extend_from_slice(b"}\n");
    Ok(line)
}

#[cfg(test)]
#[path = "stdout_tests.rs"]
mod tests;
