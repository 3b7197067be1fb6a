//! `Publisher` in memory: records what arrives, and answers as the test says.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Capabilities, Envelope, ErrorKind, Outcome, PublishError, PublishReport, Publisher, Receipt};
use tokio::sync::watch;

use super::arrivals::{Delivered, PublisherView, State};
use super::hold::PATIENCE;
use super::lock;
use super::script::Scripted;

type Script = Arc<dyn Fn(&Envelope, usize) -> Scripted + Send + Sync>;
type Topic = Box<dyn Fn(&Envelope) -> String + Send + Sync>;

/// A destination in memory.
///
/// By default everything is confirmed at once and the capabilities are [`Capabilities::CAUTIOUS`]. What is declared
/// is kept: with `keeps_order_in_batch` nothing of an aggregate is sent after its first failure in a call, with
/// `deduplicates` a second copy of an event id does not arrive, and a body above `max_event_bytes` is rejected.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use outbox_core::ErrorKind;
/// use outbox_testkit::memory::{MemoryPublisher, Scripted};
///
/// // The first try of each event of aggregate 7 fails.
/// let publisher = MemoryPublisher::new().with_script(|event, nth_time| match nth_time {
///     1 if event.aggregate_id == "7" => Scripted::fail(ErrorKind::Failed),
///     _ => Scripted::Confirm,
/// });
/// # let _ = publisher;
/// # });
/// ```
pub struct MemoryPublisher {
    capabilities: Capabilities,
    topic: Option<Topic>,
    latency: Duration,
    answer_timeout: Option<Duration>,
    script: Mutex<Script>,
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

impl MemoryPublisher {
    /// A destination that takes everything.
    #[must_use]
    pub fn new() -> Self {
        Self {
            capabilities: Capabilities::CAUTIOUS,
            topic: None,
            latency: Duration::ZERO,
            answer_timeout: None,
            script: Mutex::new(Arc::new(|_, _| Scripted::Confirm)),
            state: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }

    /// Declares what the broker can do; it is kept.
    #[must_use]
    pub fn with_capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// Names the topic of an event. By default it is the aggregate type.
    #[must_use]
    pub fn with_topic(mut self, topic: impl Fn(&Envelope) -> String + Send + Sync + 'static) -> Self {
        self.topic = Some(Box::new(topic));
        self
    }

    /// How long the broker takes to answer a call after everything has arrived, on tokio's clock. Default zero.
    #[must_use]
    pub const fn with_latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// How long a call waits for its answers before the open ones are `Unconfirmed`, on tokio's clock. By default
    /// for ever, so that the caller's own time-out can be tested.
    #[must_use]
    pub const fn with_answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = Some(timeout);
        self
    }

    /// See [`set_script`](Self::set_script).
    #[must_use]
    pub fn with_script(self, script: impl Fn(&Envelope, usize) -> Scripted + Send + Sync + 'static) -> Self {
        self.set_script(script);
        self
    }

    /// Says what happens to each event; the number is 1 when this event is handed over for the first time.
    pub fn set_script(&self, script: impl Fn(&Envelope, usize) -> Scripted + Send + Sync + 'static) {
        *lock(&self.script) = Arc::new(script);
    }

    /// The destination goes away: every event and every check gets `Unavailable`, and nothing arrives.
    pub fn set_down(&self) {
        self.refuse(PublishError::new(ErrorKind::Unavailable, "the destination is down"));
    }

    /// Every event and every check gets this error, and nothing arrives.
    pub fn refuse(&self, error: PublishError) {
        lock(&self.state).down = Some(error);
        self.changed.send_replace(());
    }

    /// The destination is back.
    pub fn set_up(&self) {
        lock(&self.state).down = None;
        self.changed.send_replace(());
    }

    /// Everything that has arrived, in order.
    #[must_use]
    pub fn delivered(&self) -> Vec<Delivered> {
        lock(&self.state).delivered.clone()
    }

    /// The ids of what has arrived, in order.
    #[must_use]
    pub fn delivered_ids(&self) -> Vec<i64> {
        lock(&self.state).delivered.iter().map(|event| event.id).collect()
    }

    /// How often `check` was called.
    #[must_use]
    pub fn checks(&self) -> u64 {
        lock(&self.state).checks
    }

    /// Looks at the state. The closure runs under a lock: it must not call the publisher.
    pub fn view<T>(&self, look: impl FnOnce(&PublisherView<'_>) -> T) -> T {
        look(&PublisherView { state: &lock(&self.state) })
    }

    /// Waits until this many events have arrived, copies counted.
    ///
    /// # Panics
    /// After [`PATIENCE`].
    pub async fn wait_for(&self, arrivals: usize) {
        self.wait_until(|view| view.delivered().len() >= arrivals).await;
    }

    /// Waits until the state is as wanted; looks again after each change.
    ///
    /// # Panics
    /// After [`PATIENCE`], with the state.
    pub async fn wait_until(&self, wanted: impl Fn(&PublisherView<'_>) -> bool) {
        let mut changed = self.changed.subscribe();
        let seen = async {
            while !self.view(&wanted) {
                // An error would mean that the sender is gone, which `self` keeps alive.
                let _ = changed.changed().await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, seen).await.is_ok();
        assert!(in_time, "the publisher never came to the wanted state: {self:?}");
    }

    fn deliver(&self, event: &Envelope) {
        let topic = self.topic(event).into_owned();
        let mut state = lock(&self.state);
        state.seen.insert(event.event_id);
        state.delivered.push(Delivered {
            id: event.id,
            event_id: event.event_id,
            aggregate_type: event.aggregate_type.clone(),
            aggregate_id: event.aggregate_id.clone(),
            event_type: event.event_type.clone(),
            topic,
            body: event.payload.data().clone(),
            headers: event.headers.clone(),
        });
        drop(state);
        self.changed.send_replace(());
    }

    /// What becomes of one event; `None` leaves its slot empty.
    async fn send(&self, event: &Envelope) -> Option<Outcome> {
        let (refusal, nth_time, seen) = {
            let mut state = lock(&self.state);
            let times = state.times.entry(event.event_id).or_default();
            *times += 1;
            let nth_time = *times;
            (state.refusal(), nth_time, state.seen.contains(&event.event_id))
        };
        if let Some(error) = refusal {
            return Some(Err(error));
        }
        let bytes = event.payload.data().len();
        if let Some(max) = self.capabilities.max_event_bytes.filter(|max| bytes > *max) {
            let detail = format!("the body has {bytes} bytes, the destination takes {max}");
            return Some(Err(PublishError::new(ErrorKind::Rejected, detail)));
        }
        let script = Arc::clone(&lock(&self.script));
        let mut scripted = script(event, nth_time);
        while let Scripted::Hold(hold, then) = scripted {
            hold.pass().await;
            scripted = *then;
        }
        let copy = seen && self.capabilities.deduplicates;
        let deliver = || {
            if !copy {
                self.deliver(event);
            }
        };
        match scripted {
            Scripted::Confirm => {
                deliver();
                let told = copy && self.capabilities.reports_duplicates;
                Some(Ok(if told { Receipt::duplicate() } else { Receipt::confirmed() }))
            }
            Scripted::ConfirmDuplicate => Some(Ok(Receipt::duplicate())),
            Scripted::Fail(error) => Some(Err(error)),
            Scripted::DeliverAndFail(error) => {
                deliver();
                Some(Err(error))
            }
            Scripted::DeliverAndForget => {
                deliver();
                None
            }
            Scripted::Panic => panic!("as the test says"),
            // A hold was resolved above.
            Scripted::Forget | Scripted::Hold(..) => None,
        }
    }

    async fn send_all(&self, events: &[Envelope], report: &mut PublishReport) {
        let mut outcomes = Vec::with_capacity(events.len());
        let mut stopped = HashSet::new();
        for (index, event) in events.iter().enumerate() {
            let aggregate = (&event.aggregate_type, &event.aggregate_id);
            if stopped.contains(&aggregate) {
                let detail = "not sent: an earlier event of its aggregate failed";
                outcomes.push((index, Err(PublishError::new(ErrorKind::Unavailable, detail))));
                continue;
            }
            let outcome = self.send(event).await;
            if self.capabilities.keeps_order_in_batch && !matches!(outcome, Some(Ok(_))) {
                stopped.insert(aggregate);
            }
            outcomes.extend(outcome.map(|outcome| (index, outcome)));
        }
        if !self.latency.is_zero() {
            tokio::time::sleep(self.latency).await;
        }
        for (index, outcome) in outcomes {
            report.set(index, outcome);
        }
    }
}

impl Default for MemoryPublisher {
    fn default() -> Self {
        Self::new()
    }
}

/// Shows counts, never payloads.
impl fmt::Debug for MemoryPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("MemoryPublisher")
            .field("delivered", &state.delivered.len())
            .field("in_flight", &state.events_in_flight)
            .field("publishes", &state.publishes)
            .field("checks", &state.checks)
            .field("down", &state.down)
            .field("closed", &state.closed)
            .finish_non_exhaustive()
    }
}

/// Counts the events of one call as in flight until the call returns, panics or is dropped.
struct InFlight<'a> {
    publisher: &'a MemoryPublisher,
    events: &'a [Envelope],
}

impl<'a> InFlight<'a> {
    fn new(publisher: &'a MemoryPublisher, events: &'a [Envelope]) -> Self {
        let mut state = lock(&publisher.state);
        state.publishes += 1;
        state.events_in_flight += events.len();
        state.most_in_flight = state.most_in_flight.max(state.events_in_flight);
        for event in events {
            let count = state.in_flight.entry(aggregate_of(event)).or_default();
            *count += 1;
            if *count > 1 {
                state.overlaps += 1;
            }
        }
        drop(state);
        publisher.changed.send_replace(());
        Self { publisher, events }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.publisher.state);
        state.events_in_flight -= self.events.len();
        for event in self.events {
            let aggregate = aggregate_of(event);
            match state.in_flight.get_mut(&aggregate) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(state.in_flight.remove(&aggregate)),
            }
        }
        drop(state);
        self.publisher.changed.send_replace(());
    }
}

fn aggregate_of(event: &Envelope) -> (String, String) {
    (event.aggregate_type.clone(), event.aggregate_id.clone())
}

#[async_trait]
impl Publisher for MemoryPublisher {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn topic<'a>(&'a self, event: &'a Envelope) -> Cow<'a, str> {
        match &self.topic {
            Some(topic) => Cow::Owned(topic(event)),
            None => Cow::Borrowed(&event.aggregate_type),
        }
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        let mut report = PublishReport::unfilled(events.len());
        if events.is_empty() {
            return report;
        }
        let _in_flight = InFlight::new(self, events);
        let sent = self.send_all(events, &mut report);
        match self.answer_timeout {
            None => sent.await,
            Some(timeout) => {
                if tokio::time::timeout(timeout, sent).await.is_err() {
                    for index in 0..events.len() {
                        let error = PublishError::new(ErrorKind::Unconfirmed, format!("no answer after {timeout:?}"));
                        report.set(index, Err(error));
                    }
                }
            }
        }
        report
    }

    async fn check(&self) -> Result<(), PublishError> {
        let refusal = {
            let mut state = lock(&self.state);
            state.checks += 1;
            state.refusal()
        };
        self.changed.send_replace(());
        refusal.map_or(Ok(()), Err)
    }

    async fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.send_replace(());
    }
}
