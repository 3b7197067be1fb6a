//! A relay of one's own, made of the parts. The business code does not change with the broker: one arm of a `match` does.
//! `custom-relay DATABASE_URL BROKER SETTINGS…`: `custom-relay postgres://… rabbitmq amqp://localhost orders`

use std::{error::Error, fmt::Debug, sync::Arc};

use outbox_core::Publisher;
use outbox_kafka::{KafkaConfig, KafkaPublisher};
use outbox_nats::{NatsConfig, NatsPublisher};
use outbox_pg::{PgConfig, PgStore};
use outbox_rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use outbox_relay::{Route, RouteConfig, StdoutPublisher};
use outbox_sqs::{SqsConfig, SqsPublisher};
use outbox_webhook::{WebhookConfig, WebhookPublisher};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

fn publisher(arguments: &[&str]) -> Result<Arc<dyn Publisher>, Box<dyn Error>> {
    match *arguments {
        ["stdout"] => Ok(Arc::new(StdoutPublisher::new()?)),
        ["rabbitmq", url, exchange] => made(RabbitMqPublisher::connect(RabbitMqConfig::new(url, exchange))),
        ["nats", url, topic] => made(NatsPublisher::connect(NatsConfig::new(url, topic))),
        ["kafka", brokers, topic] => made(KafkaPublisher::connect(KafkaConfig::new(brokers).with_topic(topic))),
        ["webhook", url, secret] => made(WebhookPublisher::connect(WebhookConfig::new(url, secret))),
        ["sqs", queue_url, region, endpoint, key, secret] => {
            let config = SqsConfig::new(queue_url).with_region(region).with_endpoint_url(endpoint);
            made(SqsPublisher::connect(config.with_access_key(key, secret)))
        }
        _ => Err("usage: custom-relay DATABASE_URL (stdout | rabbitmq URL EXCHANGE | nats URL TOPIC | …)".into()),
    }
}

fn made<E: Debug>(publisher: Result<impl Publisher, E>) -> Result<Arc<dyn Publisher>, Box<dyn Error>> {
    Ok(Arc::new(publisher.map_err(|errors| format!("{errors:?}"))?))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (database, broker) = arguments.split_first().ok_or("the first argument is the database's URL")?;
    let store = Arc::new(PgStore::new(&PgConfig::new(*database), "custom-relay")?);
    let route = Route::new(RouteConfig::new("orders"), store, publisher(broker)?);
    let route = route.map_err(|errors| format!("{errors:?}"))?;

    let shutdown = CancellationToken::new();
    let (stop, mut terminate) = (shutdown.clone(), signal(SignalKind::terminate())?);
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = tokio::signal::ctrl_c() => {} }
        stop.cancel();
    });
    Ok(route.run(shutdown).await?)
}
