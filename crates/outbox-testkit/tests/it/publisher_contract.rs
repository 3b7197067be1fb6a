//! The publisher suite against the publisher in memory, as declared cautious, capable, and in between.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Capabilities, Envelope, ErrorKind, EventId, PublishError, PublishReport, Publisher, rfc3339_micros};
use outbox_testkit::memory::{Delivered, Hold, MemoryPublisher, Scripted};
use outbox_testkit::publisher_suite::{Arrived, Fault, PublisherHarness};

mod cautious {
    outbox_testkit::publisher_suite!(super::cautious_harness);
}

mod capable {
    outbox_testkit::publisher_suite!(super::capable_harness);
}

mod silent {
    outbox_testkit::publisher_suite!(super::silent_harness);
}

fn cautious_harness() -> std::future::Ready<Option<InMemory>> {
    harness(Capabilities::CAUTIOUS)
}

fn capable_harness() -> std::future::Ready<Option<InMemory>> {
    harness(Capabilities::CAUTIOUS.keeping_order_in_batch().deduplicating().with_max_event_bytes(1 << 20))
}

fn silent_harness() -> std::future::Ready<Option<InMemory>> {
    harness(Capabilities::CAUTIOUS.deduplicating_silently())
}

fn harness(claims: Capabilities) -> std::future::Ready<Option<InMemory>> {
    let shared = Shared { fault: Fault::None, sent: HashMap::new(), publishers: Vec::new() };
    std::future::ready(Some(InMemory { claims, shared: Arc::new(Mutex::new(shared)) }))
}

struct InMemory {
    claims: Capabilities,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    fault: Fault,
    /// What the memory publisher does not keep: the rest of the wire format.
    sent: HashMap<EventId, Envelope>,
    publishers: Vec<Arc<MemoryPublisher>>,
}

impl InMemory {
    fn new_publisher(&self, publisher: MemoryPublisher) -> Arc<dyn Publisher> {
        let shared = Arc::clone(&self.shared);
        let publisher =
            publisher.with_capabilities(self.claims).with_script(move |_, _| match shared.lock().unwrap().fault {
                Fault::None | Fault::Refuse => Scripted::Confirm,
                Fault::CutReplies => Scripted::DeliverAndForget,
                Fault::Blackhole => Scripted::hold(&Hold::new(), Scripted::Forget),
            });
        let publisher = Arc::new(publisher);
        let mut shared = self.shared.lock().unwrap();
        if shared.fault == Fault::Refuse {
            publisher.set_down();
        }
        shared.publishers.push(Arc::clone(&publisher));
        Arc::new(Remembering { publisher, shared: Arc::clone(&self.shared) })
    }
}

#[async_trait]
impl PublisherHarness for InMemory {
    fn claims(&self) -> Capabilities {
        self.claims
    }

    async fn publisher(&self) -> Arc<dyn Publisher> {
        self.new_publisher(MemoryPublisher::new())
    }

    async fn impatient(&self) -> Arc<dyn Publisher> {
        self.new_publisher(MemoryPublisher::new().with_answer_timeout(Duration::from_millis(200)))
    }

    async fn lost(&self) -> Option<Arc<dyn Publisher>> {
        let lost = MemoryPublisher::new().with_script(|_, _| Scripted::fail(ErrorKind::Misconfigured));
        Some(Arc::new(lost))
    }

    async fn arrived(&self, _count: usize) -> Vec<Arrived> {
        let shared = self.shared.lock().unwrap();
        let delivered = shared.publishers.iter().flat_map(|publisher| publisher.delivered());
        delivered.map(|message| arrived(&message, &shared.sent[&message.event_id])).collect()
    }

    async fn set_fault(&self, fault: Fault) -> bool {
        let mut shared = self.shared.lock().unwrap();
        shared.fault = fault;
        for publisher in &shared.publishers {
            if fault == Fault::Refuse { publisher.set_down() } else { publisher.set_up() }
        }
        true
    }

    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }
}

fn arrived(message: &Delivered, sent: &Envelope) -> Arrived {
    let event_id = message.event_id.to_string();
    let system = [
        ("event-id", event_id.clone()),
        ("event-type", message.event_type.clone()),
        ("aggregate-type", message.aggregate_type.clone()),
        ("aggregate-id", message.aggregate_id.clone()),
        ("created-at", rfc3339_micros(sent.created_at)),
        ("content-type", sent.payload.content_type().to_owned()),
    ];
    let own = message.headers.iter().filter(|(name, _)| !system.iter().any(|(own, _)| name.eq_ignore_ascii_case(own)));
    let mut headers: BTreeMap<_, _> = own.map(|(name, value)| (name.clone(), value.clone())).collect();
    headers.extend(system.map(|(name, value)| (name.to_owned(), value)));
    Arrived { event_id, headers, body: message.body.clone() }
}

/// A memory publisher whose events are remembered whole, and whose check hangs up when the broker hangs.
#[derive(Debug)]
struct Remembering {
    publisher: Arc<MemoryPublisher>,
    shared: Arc<Mutex<Shared>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("fault", &self.fault).finish_non_exhaustive()
    }
}

#[async_trait]
impl Publisher for Remembering {
    fn capabilities(&self) -> Capabilities {
        self.publisher.capabilities()
    }

    fn topic<'a>(&'a self, event: &'a Envelope) -> Cow<'a, str> {
        self.publisher.topic(event)
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        let whole = events.iter().map(|event| (event.event_id, event.clone()));
        self.shared.lock().unwrap().sent.extend(whole);
        self.publisher.publish(events).await
    }

    async fn check(&self) -> Result<(), PublishError> {
        if self.shared.lock().unwrap().fault == Fault::Blackhole {
            return Err(PublishError::new(ErrorKind::Unavailable, "the broker hangs"));
        }
        self.publisher.check().await
    }

    async fn close(&self) {
        self.publisher.close().await;
    }
}
