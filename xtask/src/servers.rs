//! The servers of one run: taken from URLs, from `services up`, or started here and ended with the run.

use std::any::Any;
use std::path::PathBuf;
use std::process::Command;

use outbox_services::kafka::{self, Kafka};
use outbox_services::nats::{self, Binary, Nats, Version};
use outbox_services::postgres::{self, Binaries, Options, Postgres};
use outbox_services::rabbitmq::{self, RabbitMq};
use outbox_services::sqs::{self, Emulator, Sqs};
use outbox_services::{ServiceError, install};

use crate::{Outcome, services};

/// The newest supported PostgreSQL is what a machine without one gets.
const DOWNLOADED_POSTGRES: u32 = *install::POSTGRES_MAJORS.end();

/// Servers that live as long as this value, and the environment that leads tests to them.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    environment: Vec<(&'static str, String)>,
    // Held for their `Drop`.
    _started: Vec<Box<dyn Any>>,
}

/// What servers are taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Some tests start servers of their own beside those of the run: of other versions, or to kill, stop or configure
    /// them. Their binaries are needed too, also where a URL names a server.
    Tests,
    /// One server of each kind is enough.
    Demo,
}

/// A broker that a run needs beside PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broker {
    RabbitMq,
    Nats,
    Sqs,
    Kafka,
}

impl Broker {
    /// Those that have tests.
    pub(crate) const ALL: [Self; 4] = [Self::RabbitMq, Self::Nats, Self::Sqs, Self::Kafka];

    fn take(self, purpose: Purpose) -> Outcome<Taken> {
        if purpose == Purpose::Tests {
            self.find_for_tests()?;
        }
        match self {
            Self::RabbitMq => take_rabbitmq(),
            Self::Nats => take_nats(),
            Self::Sqs => take_sqs(),
            Self::Kafka => take_kafka(),
        }
    }

    /// Downloads what only tests need, where it is absent.
    fn find_for_tests(self) -> Outcome {
        match self {
            Self::RabbitMq => Ok(()),
            Self::Nats => find_nats(Version::New).and_then(|()| find_nats(Version::Old)),
            Self::Sqs => find_sqs(Emulator::Fauxqs).and_then(|()| find_sqs(Emulator::Ministack)),
            Self::Kafka => find_kafka(),
        }
    }
}

impl Servers {
    /// Takes or starts what is needed; starting all at once costs what the slowest one does.
    pub(crate) fn acquire(purpose: Purpose, pg_major: Option<u32>, brokers: &[Broker]) -> Outcome<Self> {
        let start = |broker: Broker| (broker, std::thread::spawn(move || broker.take(purpose)));
        let starting: Vec<_> = brokers.iter().copied().map(start).collect();
        let mut servers = Self::default();
        let mut taken = vec![take_postgres(pg_major)];
        for (broker, starting) in starting {
            taken.push(starting.join().map_err(|_| format!("starting {broker:?} panicked"))?);
        }
        // Only now: a server that was started ends by its `Drop`, also when another could not be.
        for taken in taken {
            let (environment, started) = taken?;
            servers.environment.extend(environment);
            servers._started.extend(started.map(|started| started as Box<dyn Any>));
        }
        for (name, value) in &servers.environment {
            println!("  {name}={}", services::without_password(value));
        }
        Ok(servers)
    }

    /// Leads a command to these servers.
    pub(crate) fn lead(&self, command: &mut Command) {
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
    }
}

/// The environment that leads to a server, and the server itself if it was started here.
type Taken = (Vec<(&'static str, String)>, Option<Box<dyn Any + Send>>);

fn take_postgres(major: Option<u32>) -> Outcome<Taken> {
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
    Ok((environment, Some(Box::new(server))))
}

fn take_rabbitmq() -> Outcome<Taken> {
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
    Ok((environment, Some(Box::new(broker))))
}

fn take_nats() -> Outcome<Taken> {
    if let Some(url) = variable(nats::URL_VARIABLE) {
        println!("NATS: the one that {} names", nats::URL_VARIABLE);
        return Ok((vec![(nats::URL_VARIABLE, url)], None));
    }
    if let Some(url) = services::live_url("nats") {
        println!("NATS: the one of `cargo xtask services`");
        return Ok((vec![(nats::URL_VARIABLE, url)], None));
    }
    let server = start_nats()?;
    Ok((vec![(nats::URL_VARIABLE, server.url())], Some(Box::new(server))))
}

fn take_sqs() -> Outcome<Taken> {
    if let Some(url) = variable(sqs::URL_VARIABLE) {
        println!("SQS: the one that {} names", sqs::URL_VARIABLE);
        return Ok((vec![(sqs::URL_VARIABLE, url)], None));
    }
    if let Some(url) = services::live_url("sqs") {
        println!("SQS: the one of `cargo xtask services`");
        return Ok((vec![(sqs::URL_VARIABLE, url)], None));
    }
    let server = start_sqs()?;
    Ok((vec![(sqs::URL_VARIABLE, server.url())], Some(Box::new(server))))
}

fn take_kafka() -> Outcome<Taken> {
    if let Some(url) = variable(kafka::URL_VARIABLE) {
        println!("Kafka: the one that {} names", kafka::URL_VARIABLE);
        return Ok((vec![(kafka::URL_VARIABLE, url)], None));
    }
    if let Some(url) = services::live_url("kafka") {
        println!("Kafka: the one of `cargo xtask services`");
        return Ok((vec![(kafka::URL_VARIABLE, url)], None));
    }
    let broker = start_kafka()?;
    Ok((vec![(kafka::URL_VARIABLE, broker.url())], Some(Box::new(broker))))
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

/// Starts NATS, after downloading it where it is absent.
pub(crate) fn start_nats() -> Outcome<Nats> {
    find_nats(Version::New)?;
    println!("NATS: starting");
    Nats::start(Version::New).map_err(text)
}

/// Downloads a line of NATS where it is absent.
fn find_nats(line: Version) -> Outcome {
    if Binary::find(line).is_err() {
        nats::download(line, &progress).map_err(text)?;
    }
    Ok(())
}

/// Starts an emulator of SQS, after downloading it where it is absent.
pub(crate) fn start_sqs() -> Outcome<Sqs> {
    find_sqs(Emulator::Fauxqs)?;
    println!("SQS: starting {}", Emulator::Fauxqs.name());
    Sqs::start(Emulator::Fauxqs).map_err(text)
}

/// Downloads an emulator of SQS where it is absent.
fn find_sqs(emulator: Emulator) -> Outcome {
    sqs::install(emulator, &progress).map(drop).map_err(text)
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
