//! NATS JetStream: a stream, read by a pull consumer.

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::{Config, RetentionPolicy};
use async_nats::jetstream::{self, Context};
use async_trait::async_trait;
use futures_util::StreamExt as _;

use super::{Arrivals, Destination, Failure, Reading};

/// A stream of all subjects that begin with its name.
#[derive(Debug)]
pub struct Nats {
    jetstream: Context,
    url: String,
    name: String,
}

impl Nats {
    /// Creates the stream.
    ///
    /// # Errors
    /// When the server is away or refuses.
    pub async fn create(url: &str, name: &str) -> Result<Self, Failure> {
        let jetstream = jetstream::new(async_nats::connect(url).await?);
        let config = Config {
            name: name.to_owned(),
            subjects: vec![format!("{name}.>")],
            // What was acknowledged goes: a long run does not fill the server.
            retention: RetentionPolicy::WorkQueue,
            ..Config::default()
        };
        jetstream.create_stream(config).await?;
        Ok(Self { jetstream, url: url.to_owned(), name: name.to_owned() })
    }

    /// The subject of the message by which the reader knows that it has seen everything before it.
    fn end_subject(&self) -> String {
        format!("{}.end", self.name)
    }
}

#[async_trait]
impl Destination for Nats {
    fn describe(&self) -> String {
        format!("stream {}", self.name)
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("url", self.url.clone()), ("topic", format!("{}.{{aggregate_type}}.{{event_type}}", self.name))]
    }

    async fn consume(&self, arrivals: Arrivals) -> Result<Reading, Failure> {
        let config = pull::Config { ack_policy: AckPolicy::Explicit, ..pull::Config::default() };
        let consumer = self.jetstream.create_consumer_on_stream(config, &self.name).await?;
        let mut messages = consumer.messages().await?;
        let end = self.end_subject();
        Ok(Box::pin(async move {
            while let Some(message) = messages.next().await {
                let message = message?;
                let is_end = message.subject.as_str() == end;
                if !is_end {
                    let id = message.headers.as_ref().and_then(|headers| headers.get("event-id"));
                    arrivals.add_by_id(id.map(async_nats::HeaderValue::as_str));
                }
                message.ack().await?;
                if is_end {
                    return Ok(());
                }
            }
            Err("the server ended the consumer".into())
        }))
    }

    async fn end(&self) -> Result<(), Failure> {
        self.jetstream.publish(self.end_subject(), "".into()).await?.await?;
        Ok(())
    }

    async fn remove(self: Box<Self>) -> Result<(), Failure> {
        self.jetstream.delete_stream(&self.name).await?;
        Ok(())
    }
}
