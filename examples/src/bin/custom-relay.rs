//! A relay of one's own, made of the parts. The business code does not change with the broker: one `match` arm does.
//! `custom-relay postgres://… stdout` or `custom-relay postgres://… amqp://… EXCHANGE`

use std::{error::Error, sync::Arc};

use outbox_core::Publisher;
use outbox_pg::{PgConfig, PgStore};
use outbox_rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use outbox_relay::{Route, RouteConfig, StdoutPublisher};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (database, publisher): (&str, Arc<dyn Publisher>) = match args[..] {
        [database, "stdout"] => (database, Arc::new(StdoutPublisher::new()?)),
        [database, broker, exchange] => {
            let publisher = RabbitMqPublisher::connect(RabbitMqConfig::new(broker, exchange));
            (database, Arc::new(publisher.map_err(|errors| format!("{errors:?}"))?))
        }
        _ => return Err("usage: custom-relay DATABASE_URL (stdout | BROKER_URL EXCHANGE)".into()),
    };
    let store = Arc::new(PgStore::new(&PgConfig::new(database), "custom-relay")?);
    let route = Route::new(RouteConfig::new("orders"), store, publisher).map_err(|errors| format!("{errors:?}"))?;

    let shutdown = CancellationToken::new();
    let (stop, mut terminate) = (shutdown.clone(), signal(SignalKind::terminate())?);
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = tokio::signal::ctrl_c() => {} }
        stop.cancel();
    });
    Ok(route.run(shutdown).await?)
}
