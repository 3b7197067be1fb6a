//! The servers of one run: taken from URLs, from `services up`, or started here and ended with the run.

use std::path::PathBuf;
use std::process::Command;

use outbox_services::kafka::{self, Kafka};
use outbox_services::postgres::{self, Binaries, Options, Postgres};
use outbox_services::rabbitmq::{self, RabbitMq};
use outbox_services::{ServiceError, install};

use crate::{Outcome, services};

/// The newest supported PostgreSQL is what a machine without one gets.
const DOWNLOADED_POSTGRES: u32 = *install::POSTGRES_MAJORS.end();

/// Servers that live as long as this value, and the environment that leads tests to them.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    environment: Vec<(&'static str, String)>,
    // Held for their `Drop`.
    _postgres: Option<Postgres>,
    _rabbitmq: Option<RabbitMq>,
    _kafka: Option<Kafka>,
}

/// A broker that a run needs beside PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broker {
    RabbitMq,
    Kafka,
}

impl Broker {
    /// Those that have tests.
    pub(crate) const ALL: [Self; 2] = [Self::RabbitMq, Self::Kafka];
}

impl Servers {
    /// Takes or starts what is needed; starting all at once costs what the slowest one does.
    pub(crate) fn acquire(pg_major: Option<u32>, brokers: &[Broker]) -> Outcome<Self> {
        let wanted = |broker| brokers.contains(&broker);
        let (with_rabbitmq, with_kafka) = (wanted(Broker::RabbitMq), wanted(Broker::Kafka));
        let rabbitmq = std::thread::spawn(move || take_if(with_rabbitmq, take_rabbitmq));
        let kafka = std::thread::spawn(move || take_if(with_kafka, take_kafka));
        let taken = take_postgres(pg_major);
        let rabbitmq = rabbitmq.join().map_err(|_| "starting RabbitMQ panicked".to_owned())?;
        let kafka = kafka.join().map_err(|_| "starting Kafka panicked".to_owned())?;
        let (mut environment, postgres) = taken?;
        let (more, rabbitmq) = rabbitmq?;
        environment.extend(more);
        let (more, kafka) = kafka?;
        environment.extend(more);
        for (name, value) in &environment {
            println!("  {name}={}", services::without_password(value));
        }
        Ok(Self { environment, _postgres: postgres, _rabbitmq: rabbitmq, _kafka: kafka })
    }

    /// Leads a command to these servers.
    pub(crate) fn lead(&self, command: &mut Command) {
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
    }
}

type Taken<T> = (Vec<(&'static str, String)>, Option<T>);

fn take_if<T>(wanted: bool, take: impl FnOnce() -> Outcome<Taken<T>>) -> Outcome<Taken<T>> {
    if wanted { take() } else { Ok((Vec::new(), None)) }
}

fn take_postgres(major: Option<u32>) -> Outcome<Taken<Postgres>> {
    if major.is_none() {
        if let Some(url) = variable(postgres::URL_VARIABLE) {
            println!("PostgreSQL: the one that {} names", postgres::URL_VARIABLE);
            return Ok((vec![(postgres::URL_VARIABLE, url)], None));
        }
        if let Some(url) = services::live_url("postgres") {
            println!("PostgreSQL: the one of `cargo xtask services`");
            return Ok((vec![(postgres::URL_VARIABLE, url)], None));
        }
    }
    let server = start_postgres(major)?;
    let environment = vec![
        (postgres::URL_VARIABLE, server.url()),
        // A test that starts a server of its own gets the same version.
        (postgres::BIN_VARIABLE, server.binaries().dir.to_string_lossy().into_owned()),
    ];
    Ok((environment, Some(server)))
}

fn take_rabbitmq() -> Outcome<Taken<RabbitMq>> {
    if let Some(url) = variable(rabbitmq::URL_VARIABLE) {
        println!("RabbitMQ: the one that {} names", rabbitmq::URL_VARIABLE);
        // Tests that kill their broker start their own: that needs binaries beside the URL.
        return Ok((vec![(rabbitmq::URL_VARIABLE, url)], None));
    }
    if let (Some(url), Some(management)) = (services::live_url("rabbitmq"), services::live_management_url()) {
        println!("RabbitMQ: the one of `cargo xtask services`");
        let environment = vec![(rabbitmq::URL_VARIABLE, url), (rabbitmq::MANAGEMENT_URL_VARIABLE, management)];
        return Ok((environment, None));
    }
    let broker = start_rabbitmq()?;
    let environment =
        vec![(rabbitmq::URL_VARIABLE, broker.url()), (rabbitmq::MANAGEMENT_URL_VARIABLE, broker.management_url())];
    Ok((environment, Some(broker)))
}

fn take_kafka() -> Outcome<Taken<Kafka>> {
    if let Some(url) = variable(kafka::URL_VARIABLE) {
        println!("Kafka: the one that {} names", kafka::URL_VARIABLE);
        // Tests that kill their broker or put a proxy before it start their own.
        find_kafka()?;
        return Ok((vec![(kafka::URL_VARIABLE, url)], None));
    }
    if let Some(url) = services::live_url("kafka") {
        println!("Kafka: the one of `cargo xtask services`");
        return Ok((vec![(kafka::URL_VARIABLE, url)], None));
    }
    let broker = start_kafka()?;
    Ok((vec![(kafka::URL_VARIABLE, broker.url())], Some(broker)))
}

/// Starts PostgreSQL, after downloading it where it is absent.
pub(crate) fn start_postgres(major: Option<u32>) -> Outcome<Postgres> {
    let binaries = match Binaries::find(major) {
        Ok(found) => found,
        Err(_) => Binaries::in_dir(&download_postgres(major.unwrap_or(DOWNLOADED_POSTGRES))?).map_err(text)?,
    };
    println!("PostgreSQL: starting version {} from {}", binaries.major, binaries.dir.display());
    Postgres::start(Options::default().with_major(binaries.major)).map_err(text)
}

/// Downloads one version of PostgreSQL if it is not there yet.
fn download_postgres(major: u32) -> Outcome<PathBuf> {
    install::postgres(major, &progress).map_err(text)
}

/// Starts RabbitMQ, after downloading it where it is absent.
pub(crate) fn start_rabbitmq() -> Outcome<RabbitMq> {
    if rabbitmq::Binaries::find().is_err() {
        install::rabbitmq(&progress).map_err(text)?;
    }
    println!("RabbitMQ: starting (4 to 20 s)");
    RabbitMq::start().map_err(text)
}

/// Starts Kafka, after downloading it where it is absent.
pub(crate) fn start_kafka() -> Outcome<Kafka> {
    find_kafka()?;
    println!("Kafka: starting");
    Kafka::start(kafka::Options::default()).map_err(text)
}

/// Downloads a Kafka broker where there is none.
fn find_kafka() -> Outcome {
    if kafka::find().is_err() {
        install::kafka(&progress).map_err(text)?;
    }
    Ok(())
}

/// A variable that is set and not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn progress(line: &str) {
    println!("{line}");
}

fn text(error: ServiceError) -> String {
    error.to_string()
}
