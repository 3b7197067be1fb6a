//! Which broker the events go to.

use clap::ValueEnum;
use outbox_examples::consumer;
#[cfg(any(feature = "rabbitmq", feature = "nats", feature = "sqs", feature = "kafka"))]
use outbox_testkit::services as servers;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BrokerKind {
    /// JSON lines on the relay's standard output: needs no broker
    Stdout,
    /// A durable queue of RabbitMQ
    Rabbitmq,
    /// A stream of NATS JetStream
    Nats,
    /// A FIFO queue of SQS, at an emulator
    Sqs,
    /// A topic of Kafka
    Kafka,
    /// Signed HTTP requests to an endpoint of the demo
    Webhook,
}

impl BrokerKind {
    /// As in the relay's configuration: `[route.<name>]`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Rabbitmq => "rabbitmq",
            Self::Nats => "nats",
            Self::Sqs => "sqs",
            Self::Kafka => "kafka",
            Self::Webhook => "webhook",
        }
    }

    /// Makes a place at this broker, under a name that no other run has; standard output needs none.
    pub(crate) async fn create(self, name: &str) -> Result<Option<Box<dyn consumer::Destination>>, consumer::Failure> {
        let destination: Box<dyn consumer::Destination> = match self {
            Self::Stdout => return Ok(None),
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq => Box::new(consumer::RabbitMq::create(&url_of(servers::rabbitmq::shared)?, name).await?),
            #[cfg(feature = "nats")]
            Self::Nats => {
                let shared = || servers::nats::shared(servers::nats::Version::New);
                Box::new(consumer::Nats::create(&url_of(shared)?, name).await?)
            }
            #[cfg(feature = "sqs")]
            Self::Sqs => Box::new(consumer::Sqs::create(&url_of(servers::sqs::shared)?, name).await?),
            #[cfg(feature = "kafka")]
            Self::Kafka => Box::new(consumer::Kafka::create(&url_of(servers::kafka::shared)?, name).await?),
            #[cfg(feature = "webhook")]
            Self::Webhook => Box::new(consumer::Webhook::create().await?),
            #[cfg(not(all(
                feature = "rabbitmq",
                feature = "nats",
                feature = "sqs",
                feature = "kafka",
                feature = "webhook"
            )))]
            absent => {
                let broker = absent.name();
                let hint = format!("build it with feature `{broker}`, or run `cargo xtask demo --broker {broker}`");
                return Err(format!("{name} can't be made: this demo was built without {broker}; {hint}").into());
            }
        };
        Ok(Some(destination))
    }
}

/// Where a server is. It may have to be started first, which blocks.
#[cfg(any(feature = "rabbitmq", feature = "nats", feature = "sqs", feature = "kafka"))]
fn url_of(shared: impl FnOnce() -> servers::Result<String>) -> servers::Result<String> {
    tokio::task::block_in_place(shared)
}
