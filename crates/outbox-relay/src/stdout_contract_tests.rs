//! The shared suite over lines that a buffer has taken. A pipe that is closed shows only at the next line, so faults are
//! not claimed: what they do to the outcomes stands in the other tests of this publisher.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use outbox_core::{Capabilities, Publisher};
use outbox_testkit::publisher_suite::{Arrived, Fault, PublisherHarness};

use super::{Scripted, StdoutPublisher};

#[derive(serde::Deserialize)]
struct Line<'a> {
    event_id: String,
    event_type: String,
    aggregate_type: String,
    aggregate_id: String,
    created_at: String,
    content_type: String,
    headers: BTreeMap<String, String>,
    #[serde(borrow)]
    payload: Option<&'a serde_json::value::RawValue>,
    payload_base64: Option<String>,
}

impl Line<'_> {
    fn arrived(self) -> Arrived {
        let body = match (self.payload, self.payload_base64) {
            (Some(json), None) => Bytes::from(json.get().to_owned()),
            (None, Some(text)) => STANDARD.decode(text).unwrap().into(),
            _ => panic!("either payload or payload_base64"),
        };
        let system = [
            ("event-id", self.event_id.clone()),
            ("event-type", self.event_type),
            ("aggregate-type", self.aggregate_type),
            ("aggregate-id", self.aggregate_id),
            ("created-at", self.created_at),
            ("content-type", self.content_type),
        ];
        // They stand in an object of their own, so none can be taken for a field of the line.
        let is_own = |name: &String| !system.iter().any(|(taken, _)| taken.eq_ignore_ascii_case(name));
        let mut headers: BTreeMap<_, _> = self.headers.into_iter().filter(|(name, _)| is_own(name)).collect();
        headers.extend(system.map(|(name, value)| (name.to_owned(), value)));
        Arrived { event_id: self.event_id, headers, body }
    }
}

struct Buffer(Scripted);

#[async_trait]
impl PublisherHarness for Buffer {
    fn claims(&self) -> Capabilities {
        Capabilities::CAUTIOUS.keeping_order_in_batch()
    }

    async fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(StdoutPublisher::to_writer(self.0.clone()))
    }

    async fn impatient(&self) -> Arc<dyn Publisher> {
        self.publisher().await
    }

    async fn lost(&self) -> Option<Arc<dyn Publisher>> {
        None
    }

    async fn arrived(&self, _count: usize) -> Vec<Arrived> {
        let text = self.0.text();
        text.lines().map(|line| serde_json::from_str::<Line<'_>>(line).unwrap().arrived()).collect()
    }

    async fn set_fault(&self, _fault: Fault) -> bool {
        false
    }

    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }
}

fn setup() -> std::future::Ready<Option<Buffer>> {
    std::future::ready(Some(Buffer(Scripted::default())))
}

mod stdout {
    outbox_testkit::publisher_suite!(super::setup);
}
