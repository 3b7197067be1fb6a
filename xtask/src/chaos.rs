//! `cargo xtask chaos`: three relays, a database and a broker under a schedule of faults that follows from a seed.

use outbox_services::REQUIRE_VARIABLE;

use crate::Outcome;
use crate::cargo::{cargo, has_subcommand, must};
use crate::servers::{Broker, Purpose, Servers};
use crate::test::{build, lead_to_binaries};

const HELP: &str = "usage: cargo xtask chaos [--minutes N] [--seed S] [--seeds N] [--broker rabbitmq|nats]

  --minutes N  of faults with each seed (default 1)
  --seed S     the first seed (default 1); the same seed makes the same schedule
  --seeds N    so many seeds, one after another (default 1)
  --broker B   where events go (default rabbitmq)

Prints the schedule, what happened when, and the verdict of the history.";

const TEST: &str = "package(outbox-tests) and test(=chaos::the_promises_hold)";

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (mut minutes, mut seed, mut seeds, mut broker) = (1, 1, 1, "rabbitmq".to_owned());
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let value = rest.next().ok_or_else(|| format!("{argument} needs a value\n\n{HELP}"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{argument} must be a whole number, got `{value}`"));
        match argument.as_str() {
            "--minutes" => minutes = number()?,
            "--seed" => seed = number()?,
            "--seeds" => seeds = number()?,
            "--broker" => broker.clone_from(value),
            unknown => return Err(format!("unknown argument `{unknown}`\n\n{HELP}")),
        }
    }
    if minutes == 0 || seeds == 0 {
        return Err("--minutes and --seeds must be at least 1".to_owned());
    }
    if !["rabbitmq", "nats"].contains(&broker.as_str()) {
        return Err(format!("--broker must be rabbitmq or nats, got `{broker}`"));
    }
    if !has_subcommand("nextest") {
        return Err("cargo-nextest is not installed: run `cargo install cargo-nextest --locked`".to_owned());
    }
    println!("== services");
    let servers = Servers::acquire(Purpose::Tests, None, &Broker::ALL)?;
    println!("== build");
    build()?;
    for seed in seed..seed + seeds {
        println!("== seed {seed}: {minutes} min on {broker}");
        let mut command = cargo(&["nextest", "run", "--workspace", "--all-features", "--no-capture", "-E", TEST]);
        servers.lead(&mut command);
        lead_to_binaries(&mut command);
        command.env(REQUIRE_VARIABLE, "pg,amqp,nats");
        command.env("OUTBOX_CHAOS_SEED", seed.to_string()).env("OUTBOX_CHAOS_BROKER", &broker);
        must(command.env("OUTBOX_CHAOS_SECONDS", (minutes * 60).to_string()))?;
    }
    Ok(())
}
