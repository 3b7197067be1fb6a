//! The conformance suite, per kind of queue.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Capabilities, Envelope, Publisher};
use outbox_sqs::{SqsConfig, SqsPublisher};
use outbox_testkit::proxy::{FaultProxy, Mode};
use outbox_testkit::publisher_suite::{Arrived, Fault, PublisherHarness};
use tokio::sync::Mutex;

use crate::queue::{KEY, Kind, Queue, SECRET, url};

mod standard {
    outbox_testkit::publisher_suite!(super::standard_queue);
}

mod fifo {
    outbox_testkit::publisher_suite!(super::fifo_queue);
}

const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Long enough for a healthy server on a busy machine, short enough for the suite.
const SHORT: Duration = Duration::from_millis(1500);

async fn standard_queue() -> Option<Proxied> {
    proxied(Kind::Standard).await
}

async fn fifo_queue() -> Option<Proxied> {
    proxied(Kind::Fifo).await
}

async fn proxied(kind: Kind) -> Option<Proxied> {
    let url = url()?;
    let (_, authority) = url.split_once("://")?;
    let proxy = FaultProxy::start(authority.trim_end_matches('/')).await.unwrap();
    let queue = Queue::create(&url, kind).await;
    let config = queue.config().with_endpoint_url(proxy.url_for(&url));
    Some(Proxied { kind, queue, proxy, config, arrived: Mutex::default() })
}

struct Proxied {
    kind: Kind,
    queue: Queue,
    proxy: FaultProxy,
    config: SqsConfig,
    arrived: Mutex<Vec<Arrived>>,
}

impl Proxied {
    fn impatient(&self) -> SqsConfig {
        self.config.clone().with_request_timeout(SHORT).with_connect_timeout(SHORT)
    }
}

fn connect(config: SqsConfig) -> Arc<dyn Publisher> {
    Arc::new(SqsPublisher::connect(config).unwrap())
}

#[async_trait]
impl PublisherHarness for Proxied {
    fn claims(&self) -> Capabilities {
        let claims = Capabilities::CAUTIOUS.with_max_event_bytes(MAX_MESSAGE_BYTES);
        if self.kind == Kind::Fifo { claims.deduplicating_silently() } else { claims }
    }

    fn overhead(&self, event: &Envelope) -> usize {
        let names = ["event-id", "event-type", "aggregate-type", "aggregate-id", "created-at", "content-type"];
        let names: usize = names.iter().map(|name| name.len() + "String".len()).sum();
        let values = event.event_type.len() + event.aggregate_type.len() + event.aggregate_id.len();
        let id_and_time = "00000000-0000-0000-0000-000000000000".len() + "2024-02-29T23:59:59.999999Z".len();
        names + values + id_and_time + event.payload.content_type().len()
    }

    async fn publisher(&self) -> Arc<dyn Publisher> {
        connect(self.config.clone())
    }

    async fn impatient(&self) -> Arc<dyn Publisher> {
        connect(Self::impatient(self))
    }

    async fn lost(&self) -> Option<Arc<dyn Publisher>> {
        let mut config = Self::impatient(self);
        config.queue_url = config.queue_url.replace("/q-", "/missing-");
        Some(connect(config))
    }

    async fn arrived(&self, count: usize) -> Vec<Arrived> {
        let mut arrived = self.arrived.lock().await;
        self.queue.take_until(&mut arrived, count).await;
        arrived.clone()
    }

    async fn set_fault(&self, fault: Fault) -> bool {
        match fault {
            Fault::None => {
                self.proxy.cut();
                self.proxy.apply(Mode::Pass).await;
            }
            // The client speaks first: behind a connection that is made and then reset it may have been heard.
            Fault::Refuse => self.proxy.apply(Mode::Closed).await,
            Fault::Blackhole => self.proxy.apply(Mode::Blackhole).await,
            Fault::CutReplies => self.proxy.apply(Mode::CutReplies).await,
        }
        true
    }

    fn secrets(&self) -> Vec<String> {
        vec![KEY.to_owned(), SECRET.to_owned()]
    }
}
