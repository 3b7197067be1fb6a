//! The servers of one run: taken from URLs, from `services up`, or started here and ended with the run.

use std::path::PathBuf;
use std::process::Command;

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
    _postgres: Option<Postgres>,
    _rabbitmq: Option<RabbitMq>,
    _sqs: Option<Sqs>,
}

/// A broker that a run needs beside PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broker {
    RabbitMq,
    Sqs,
}

impl Broker {
    /// Those that have tests.
    pub(crate) const ALL: [Self; 2] = [Self::RabbitMq, Self::Sqs];
}

impl Servers {
    /// Takes or starts what is needed; starting all at once costs what the slowest one does.
    pub(crate) fn acquire(pg_major: Option<u32>, brokers: &[Broker]) -> Outcome<Self> {
        let wanted = |broker| brokers.contains(&broker);
        let (with_rabbitmq, with_sqs) = (wanted(Broker::RabbitMq), wanted(Broker::Sqs));
        let rabbitmq = std::thread::spawn(move || take_if(with_rabbitmq, take_rabbitmq));
        let sqs = std::thread::spawn(move || take_if(with_sqs, take_sqs));
        let taken = take_postgres(pg_major);
        let rabbitmq = rabbitmq.join().map_err(|_| "starting RabbitMQ panicked".to_owned())?;
        let sqs = sqs.join().map_err(|_| "starting SQS panicked".to_owned())?;
        let (mut environment, postgres) = taken?;
        let (more, rabbitmq) = rabbitmq?;
        environment.extend(more);
        let (more, sqs) = sqs?;
        environment.extend(more);
        for (name, value) in &environment {
            println!("  {name}={}", services::without_password(value));
        }
        Ok(Self { environment, _postgres: postgres, _rabbitmq: rabbitmq, _sqs: sqs })
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

fn take_sqs() -> Outcome<Taken<Sqs>> {
    // Tests that kill or stop their server start their own, of both kinds.
    find_sqs()?;
    if let Some(url) = variable(sqs::URL_VARIABLE) {
        println!("SQS: the one that {} names", sqs::URL_VARIABLE);
        return Ok((vec![(sqs::URL_VARIABLE, url)], None));
    }
    if let Some(url) = services::live_url("sqs") {
        println!("SQS: the one of `cargo xtask services`");
        return Ok((vec![(sqs::URL_VARIABLE, url)], None));
    }
    let server = start_sqs()?;
    Ok((vec![(sqs::URL_VARIABLE, server.url())], Some(server)))
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

/// Starts an emulator of SQS, after downloading it where it is absent.
pub(crate) fn start_sqs() -> Outcome<Sqs> {
    find_sqs()?;
    println!("SQS: starting {}", Emulator::Fauxqs.name());
    Sqs::start(Emulator::Fauxqs).map_err(text)
}

/// Downloads the emulators of SQS where they are absent.
fn find_sqs() -> Outcome {
    for emulator in [Emulator::Fauxqs, Emulator::Ministack] {
        sqs::install(emulator, &progress).map_err(text)?;
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
