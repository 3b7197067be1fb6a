//! A queue under a name of its own, and what came into it, read as a consumer does.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{BehaviorVersion, Config, Credentials, Region};
use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, Message, MessageSystemAttributeName, QueueAttributeName};
use base64::Engine as _;
use bytes::Bytes;
use outbox_core::{Envelope, EventId, Headers, Outcome, Payload, PublishError, Publisher};
use outbox_sqs::{SqsConfig, SqsPublisher};
use outbox_testkit::publisher_suite::{AGGREGATE_TYPE, Arrived, EVENT_TYPE, PATIENCE};
use outbox_testkit::services::sqs::shared_or_skip;
use uuid::Uuid;

pub(crate) const REGION: &str = "us-east-1";
pub(crate) const KEY: &str = "AKIDOUTBOXTESTS";
pub(crate) const SECRET: &str = "a-secret-that-must-not-be-shown";
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The kinds of queue that every promise must hold for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Standard,
    Fifo,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Standard, Self::Fifo];
}

/// The server's endpoint, or a visible skip. It may start a server, hence blocks.
pub(crate) fn url() -> Option<String> {
    tokio::task::block_in_place(shared_or_skip)
}

/// A client of the tests' own.
pub(crate) fn client(endpoint: &str) -> Client {
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .credentials_provider(Credentials::new(KEY, SECRET, None, None, "tests"))
        .endpoint_url(endpoint)
        .http_client(aws_smithy_http_client::Builder::new().build_http());
    Client::from_conf(config.build())
}

/// A name that no other test has.
pub(crate) fn unique_name(kind: Kind) -> String {
    let suffix = if kind == Kind::Fifo { ".fifo" } else { "" };
    format!("q-{}{suffix}", Uuid::now_v7().simple())
}

/// A queue, reached around any proxy.
pub(crate) struct Queue {
    pub(crate) client: Client,
    pub(crate) url: String,
    /// Set for each publisher: an emulator may name its queues by a host that no name server knows.
    endpoint: String,
}

impl Queue {
    pub(crate) async fn create(endpoint: &str, kind: Kind) -> Self {
        Self::create_named(endpoint, &unique_name(kind), &[]).await
    }

    pub(crate) async fn create_named(endpoint: &str, name: &str, attributes: &[(QueueAttributeName, &str)]) -> Self {
        let client = client(endpoint);
        let mut request = client.create_queue().queue_name(name);
        if name.ends_with(".fifo") {
            request = request.attributes(QueueAttributeName::FifoQueue, "true");
        }
        for (name, value) in attributes {
            request = request.attributes(name.clone(), *value);
        }
        let url = request.send().await.unwrap().queue_url.unwrap();
        Self { client, url, endpoint: endpoint.to_owned() }
    }

    pub(crate) fn config(&self) -> SqsConfig {
        let config = SqsConfig::new(&self.url).with_region(REGION).with_endpoint_url(&self.endpoint);
        config.with_access_key(KEY, SECRET)
    }

    pub(crate) fn publisher(&self) -> SqsPublisher {
        SqsPublisher::connect(self.config()).unwrap()
    }

    /// Takes what the queue gives at once, as messages of SQS.
    pub(crate) async fn take_raw(&self) -> Vec<Message> {
        let request = self.client.receive_message().queue_url(&self.url).max_number_of_messages(10);
        let request =
            request.message_attribute_names("All").message_system_attribute_names(MessageSystemAttributeName::All);
        let messages = request.send().await.unwrap().messages.unwrap_or_default();
        if !messages.is_empty() {
            let mut delete = self.client.delete_message_batch().queue_url(&self.url);
            for (index, message) in messages.iter().enumerate() {
                let entry = DeleteMessageBatchRequestEntry::builder().id(index.to_string());
                let entry = entry.receipt_handle(message.receipt_handle().unwrap());
                delete = delete.entries(entry.build().unwrap());
            }
            assert!(delete.send().await.unwrap().failed().is_empty());
        }
        messages
    }

    /// Takes everything that is in the queue.
    pub(crate) async fn take(&self) -> Vec<Arrived> {
        let mut taken = Vec::new();
        loop {
            let messages = self.take_raw().await;
            if messages.is_empty() {
                return taken;
            }
            taken.extend(messages.iter().map(read));
        }
    }

    /// Takes messages until there are `count` of them in `arrived`, and whatever else is there.
    pub(crate) async fn take_until(&self, arrived: &mut Vec<Arrived>, count: usize) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let mut look = tokio::time::interval(LOOK_AGAIN);
        loop {
            arrived.extend(self.take().await);
            if arrived.len() >= count || tokio::time::Instant::now() >= deadline {
                return;
            }
            look.tick().await;
        }
    }

    /// The ids of everything in the queue, sorted, once there are `count`.
    pub(crate) async fn taken_ids(&self, count: usize) -> Vec<String> {
        let mut arrived = Vec::new();
        self.take_until(&mut arrived, count).await;
        arrived_ids(&arrived)
    }
}

/// Reads a message as the documentation tells consumers to.
pub(crate) fn read(message: &Message) -> Arrived {
    let attributes = message.message_attributes().unwrap();
    let value = |name: &str| attributes.get(name).and_then(|value| value.string_value());
    let mut headers: BTreeMap<String, String> = attributes
        .iter()
        .filter(|(name, _)| *name != "headers")
        .map(|(name, value)| (name.clone(), percent_decoded(value.string_value().unwrap())))
        .collect();
    let mut body = Bytes::from(message.body().unwrap().to_owned());
    if value("content-encoding") == Some("base64") {
        headers.remove("content-encoding");
        body = base64::engine::general_purpose::STANDARD.decode(body).unwrap().into();
    }
    if let Some(json) = value("headers") {
        headers.extend(serde_json::from_str::<BTreeMap<String, String>>(json).unwrap());
    }
    Arrived { event_id: headers["event-id"].clone(), headers, body }
}

fn percent_decoded(value: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == b'%' {
            let (digits, after) = rest.split_at(2);
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap());
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// Events of as many aggregates.
pub(crate) fn events(count: i64) -> Vec<Envelope> {
    let event = |number: i64| Envelope {
        id: number,
        event_id: EventId::from_uuid(Uuid::now_v7()),
        aggregate_type: AGGREGATE_TYPE.to_owned(),
        aggregate_id: format!("aggregate-{number}"),
        event_type: EVENT_TYPE.to_owned(),
        payload: Payload::raw_json(format!("{{\"number\":{number}}}")),
        headers: Headers::new(),
        created_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_251_199),
    };
    (1..=count).map(event).collect()
}

pub(crate) async fn publish(publisher: &dyn Publisher, events: &[Envelope]) -> Vec<Outcome> {
    publisher.publish(events).await.into_outcomes(events.len())
}

/// Asks again and again until it is so; panics after [`PATIENCE`].
pub(crate) async fn until<F: Future<Output = bool>>(so: impl Fn() -> F) {
    let mut look = tokio::time::interval(LOOK_AGAIN);
    let asked = async {
        while !so().await {
            look.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("it never came to be so");
}

pub(crate) fn ids<'a>(events: impl IntoIterator<Item = &'a Envelope>) -> Vec<String> {
    let mut ids: Vec<_> = events.into_iter().map(|event| event.event_id.to_string()).collect();
    ids.sort_unstable();
    ids
}

pub(crate) fn arrived_ids(arrived: &[Arrived]) -> Vec<String> {
    let mut ids: Vec<_> = arrived.iter().map(|message| message.event_id.clone()).collect();
    ids.sort_unstable();
    ids
}

#[track_caller]
pub(crate) fn error(outcome: &Outcome) -> &PublishError {
    outcome.as_ref().expect_err("it can't have been confirmed")
}
