//! A queue, standard or FIFO.

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{BehaviorVersion, Config, Credentials, Region};
use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, Message, QueueAttributeName};
use outbox_core::EventId;
use outbox_testkit::services::require_or_skip;
use outbox_testkit::services::sqs::{Emulator, Sqs, shared_or_skip};
use tokio::task::block_in_place;
use uuid::Uuid;

use super::{Destination, Mortal, event_id, own};
use crate::relay::RelayConfig;

const REGION: &str = "us-east-1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SqsKind {
    Standard,
    Fifo,
}

pub(crate) struct SqsQueue {
    server: Option<Sqs>,
    endpoint: String,
    kind: SqsKind,
    name: String,
    /// As the server gives it; known once the queue is made, or a queue beside it.
    url: String,
    client: Client,
    arrived: Vec<EventId>,
}

impl SqsQueue {
    /// On the shared server.
    pub(crate) fn shared(kind: SqsKind) -> Option<Self> {
        Some(Self::at(block_in_place(shared_or_skip)?, None, kind))
    }

    /// On a server of its own that keeps its data over a polite stop.
    pub(crate) fn own(kind: SqsKind) -> Option<Self> {
        let server = block_in_place(|| require_or_skip("sqs", Sqs::start(Emulator::Ministack)))?;
        Some(Self::at(server.url(), Some(server), kind))
    }

    /// Knows its URL before it is made, from that of a queue beside it.
    pub(crate) async fn not_made_yet(mut self) -> Self {
        let beside = format!("beside-{}", self.name);
        self.url = self.create(&beside).await.replace(&beside, &self.name);
        self
    }

    async fn create(&self, name: &str) -> String {
        let mut request = self.client.create_queue().queue_name(name);
        if self.kind == SqsKind::Fifo {
            request = request.attributes(QueueAttributeName::FifoQueue, "true");
        }
        request.send().await.unwrap().queue_url.unwrap()
    }

    fn at(endpoint: String, server: Option<Sqs>, kind: SqsKind) -> Self {
        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(REGION))
            .credentials_provider(Credentials::new("key", "secret", None, None, "tests"))
            .endpoint_url(&endpoint)
            .http_client(aws_smithy_http_client::Builder::new().build_http());
        let suffix = if kind == SqsKind::Fifo { ".fifo" } else { "" };
        let name = format!("it-{}{suffix}", Uuid::now_v7().simple());
        Self {
            server,
            endpoint,
            kind,
            name,
            url: String::new(),
            client: Client::from_conf(config.build()),
            arrived: Vec::new(),
        }
    }

    /// Takes up to ten messages.
    async fn take(&self) -> Vec<Message> {
        let request = self.client.receive_message().queue_url(&self.url).max_number_of_messages(10);
        let messages = request.message_attribute_names("event-id").send().await.unwrap().messages.unwrap_or_default();
        if !messages.is_empty() {
            let entries = messages.iter().enumerate().map(|(index, message)| {
                let entry = DeleteMessageBatchRequestEntry::builder().id(index.to_string());
                entry.receipt_handle(message.receipt_handle().unwrap()).build().unwrap()
            });
            let delete = self.client.delete_message_batch().queue_url(&self.url).set_entries(Some(entries.collect()));
            assert!(delete.send().await.unwrap().failed().is_empty());
        }
        messages
    }
}

#[async_trait]
impl Destination for SqsQueue {
    fn kind(&self) -> &'static str {
        "sqs"
    }

    fn lead(&self, config: RelayConfig) -> RelayConfig {
        let config = config.with("route.0.sqs.queue_url", &self.url).with("route.0.sqs.region", REGION);
        let config = config.with("route.0.sqs.endpoint_url", &self.endpoint);
        config.with("route.0.sqs.access_key_id", "key").with("route.0.sqs.secret_access_key", "secret")
    }

    fn name_when_missing(&self) -> &str {
        "queue does not exist"
    }

    fn promises_order(&self) -> bool {
        self.kind == SqsKind::Fifo
    }

    async fn make(&mut self) {
        let url = self.create(&self.name).await;
        assert!(self.url.is_empty() || self.url == url, "{} is not {url}", self.url);
        self.url = url;
    }

    async fn arrived(&mut self) -> Vec<EventId> {
        loop {
            let messages = self.take().await;
            if messages.is_empty() {
                return self.arrived.clone();
            }
            for message in messages {
                let attributes = message.message_attributes().unwrap();
                self.arrived.push(event_id(attributes["event-id"].string_value().unwrap()));
            }
        }
    }
}

#[async_trait]
impl Mortal for SqsQueue {
    async fn go_down(&mut self) {
        // No emulator keeps its data through a kill: a polite stop is the hardest end there is.
        block_in_place(|| own(&mut self.server).stop()).unwrap();
    }

    async fn come_back(&mut self) {
        block_in_place(|| own(&mut self.server).start_again()).unwrap();
    }
}
