//! A stream.

use async_nats::Subscriber;
use async_nats::jetstream::{self, Context, stream};
use async_trait::async_trait;
use outbox_core::EventId;
use outbox_testkit::services::nats::{Nats, Version, shared_or_skip};
use outbox_testkit::services::require_or_skip;
use tokio::task::block_in_place;
use uuid::Uuid;

use super::{ByUrl, Destination, Mortal, event_id, own};
use crate::relay::RelayConfig;

pub(crate) struct NatsStream {
    server: Option<Nats>,
    url: String,
    /// The stream's name, and the first token of its subjects.
    name: String,
    jetstream: Context,
    /// Listens on the subjects without a stream.
    subscriber: Option<Subscriber>,
    arrived: Vec<EventId>,
}

impl NatsStream {
    /// On the shared server.
    pub(crate) async fn shared() -> Option<Self> {
        let url = block_in_place(|| shared_or_skip(Version::New))?;
        Some(Self::at(url, None).await)
    }

    /// On a server of its own.
    pub(crate) async fn own(line: Version) -> Option<Self> {
        let server = block_in_place(|| require_or_skip("nats", Nats::start(line)))?;
        Some(Self::at(server.url(), Some(server)).await)
    }

    /// With an ordinary subscriber on its subjects, who hides from the server that no stream takes them.
    pub(crate) async fn overheard(mut self) -> Self {
        let client = async_nats::connect(&self.url).await.unwrap();
        self.subscriber = Some(client.subscribe(format!("{}.>", self.name)).await.unwrap());
        client.flush().await.unwrap();
        self
    }

    async fn at(url: String, server: Option<Nats>) -> Self {
        let jetstream = jetstream::new(async_nats::connect(&url).await.unwrap());
        Self {
            server,
            url,
            name: format!("it{}", Uuid::now_v7().simple()),
            jetstream,
            subscriber: None,
            arrived: Vec::new(),
        }
    }
}

#[async_trait]
impl Destination for NatsStream {
    fn kind(&self) -> &'static str {
        "nats"
    }

    fn lead(&self, config: RelayConfig) -> RelayConfig {
        let topic = format!("{}.{{aggregate_type}}.{{event_type}}", self.name);
        let config = config.with("route.0.nats.url", &self.url).with("route.0.nats.topic", &topic);
        // Nobody answers before the stream is there, and a test waits for that several times.
        if self.subscriber.is_some() { config.with("route.0.nats.confirm_timeout", "300ms") } else { config }
    }

    fn name_when_missing(&self) -> &str {
        &self.name
    }

    async fn make(&mut self) {
        let subjects = vec![format!("{}.>", self.name)];
        let config = stream::Config { name: self.name.clone(), subjects, ..stream::Config::default() };
        self.jetstream.create_stream(config).await.unwrap();
    }

    async fn arrived(&mut self) -> Vec<EventId> {
        let mut stream = self.jetstream.get_stream(&self.name).await.unwrap();
        let last = stream.info().await.unwrap().state.last_sequence;
        for sequence in self.arrived.len() as u64 + 1..=last {
            let message = stream.get_raw_message(sequence).await.unwrap();
            self.arrived.push(event_id(message.headers.get("event-id").unwrap().as_str()));
        }
        self.arrived.clone()
    }
}

#[async_trait]
impl Mortal for NatsStream {
    async fn go_down(&mut self) {
        block_in_place(|| own(&mut self.server).kill9()).unwrap();
    }

    async fn come_back(&mut self) {
        block_in_place(|| own(&mut self.server).start_again()).unwrap();
        // The client here connects by itself, but not at once.
        self.jetstream = jetstream::new(async_nats::connect(&self.url).await.unwrap());
    }
}

impl ByUrl for NatsStream {
    fn url(&self) -> String {
        self.url.clone()
    }
}
