//! `cargo xtask test`: all tests against real services, with proof that they were used.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use outbox_services::{CHECK, LEDGER_VARIABLE, REQUIRE_VARIABLE, install};

use crate::cargo::{bin_dir, cargo, has_subcommand, must};
use crate::servers::{Broker, Purpose, Servers};
use crate::{Outcome, conformance};

/// The services without which a run has not tested the project.
const REQUIRED: [&str; 5] = ["pg", "amqp", "nats", "sqs", "kafka"];

/// Where tests find the `outbox-relay` binary.
pub(crate) const RELAY_VARIABLE: &str = "OUTBOX_RELAY_BIN";

/// Where tests find all binaries of the workspace.
pub(crate) const BIN_DIR_VARIABLE: &str = "OUTBOX_BIN_DIR";

/// Makes the end-to-end tests use their long forms.
const FULL_VARIABLE: &str = "OUTBOX_TEST_FULL";

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (major, mut filter) = take_major(arguments)?;
    let full = filter.iter().position(|argument| argument == "--full").map(|at| filter.remove(at)).is_some();
    println!("== services");
    let servers = Servers::acquire(Purpose::Tests, major, &Broker::ALL)?;
    println!("== build");
    build()?;
    let ledger = Ledger::new()?;
    println!("== tests");
    let prepared = |command: &mut Command| {
        servers.lead(command);
        lead_to_binaries(command);
        command.env(REQUIRE_VARIABLE, REQUIRED.join(",")).env(LEDGER_VARIABLE, &ledger.path);
        if full {
            command.env(FULL_VARIABLE, "1");
        }
        must(command)
    };
    let chosen: Vec<&str> = filter.iter().map(String::as_str).collect();
    if has_subcommand("nextest") {
        prepared(cargo(&["nextest", "run", "--workspace", "--all-features"]).args(&chosen))?;
    } else {
        println!("cargo-nextest is not installed: using `cargo test`");
        prepared(cargo(&["test", "--workspace", "--all-features", "--lib", "--bins", "--tests"]).args(&chosen))?;
    }
    if chosen.is_empty() {
        println!("== documentation tests");
        prepared(&mut cargo(&["test", "--doc", "--workspace", "--all-features"]))?;
    }
    println!("== conformance of publishers");
    let noted = ledger.text()?;
    let conformed = conformance::judge(&noted, chosen.is_empty());
    println!("== services used");
    judge_services(&noted, chosen.is_empty())?;
    conformed
}

/// Builds the binaries that tests run. With the tests in one go: their features are then unified once, and nothing is
/// compiled twice.
pub(crate) fn build() -> Outcome {
    must(&mut cargo(&["build", "--workspace", "--all-features", "--bins", "--tests"]))
}

/// Tells a command where the workspace's binaries are.
pub(crate) fn lead_to_binaries(command: &mut Command) {
    let dir = bin_dir();
    command.env(RELAY_VARIABLE, dir.join("outbox-relay")).env(BIN_DIR_VARIABLE, dir);
}

/// Takes `--pg MAJOR` out of the arguments.
pub(crate) fn take_major(arguments: &[String]) -> Outcome<(Option<u32>, Vec<String>)> {
    let mut rest = arguments.to_vec();
    let Some(at) = rest.iter().position(|argument| argument == "--pg") else { return Ok((None, rest)) };
    let major = rest.get(at + 1).and_then(|value| value.parse().ok());
    let Some(major) = major.filter(|major| install::POSTGRES_MAJORS.contains(major)) else {
        return Err("--pg needs a major version of PostgreSQL from 14 to 18".to_owned());
    };
    rest.drain(at..at + 2);
    Ok((Some(major), rest))
}

/// The file in which each test notes the service that it used, and each conformance check its result.
struct Ledger {
    path: PathBuf,
}

impl Ledger {
    fn new() -> Outcome<Self> {
        let dir = install::make_base_dir().map_err(|error| error.to_string())?;
        let path = dir.join(format!("ledger-{}", std::process::id()));
        fs::write(&path, "").map_err(|error| format!("can't write {}: {error}", path.display()))?;
        Ok(Self { path })
    }

    fn text(&self) -> Outcome<String> {
        fs::read_to_string(&self.path).map_err(|error| format!("can't read {}: {error}", self.path.display()))
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        eprintln!("can't remove {}: {error}", path.display());
    }
}

/// Prints how many tests used each service; fails on any that was skipped, and on a service that nobody used.
fn judge_services(ledger: &str, all_ran: bool) -> Outcome {
    let (report, problems) = judge(ledger, all_ran);
    print!("{report}");
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

fn judge(ledger: &str, all_ran: bool) -> (String, Vec<String>) {
    let lines: BTreeSet<(&str, &str, &str)> = ledger
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, '\t');
            Some((fields.next()?, fields.next()?, fields.next()?))
        })
        .filter(|line| line.0 != CHECK)
        .collect();
    let mut services: BTreeSet<&str> = lines.iter().map(|line| line.0).collect();
    services.extend(REQUIRED);
    let (mut report, mut problems) = (String::new(), Vec::new());
    for service in services {
        let count = |what: &str| lines.iter().filter(|line| line.0 == service && line.1 == what).count();
        let (used, skipped) = (count("used"), count("skipped"));
        report.push_str(&format!("{service}: used by {used} tests, skipped by {skipped}\n"));
        if skipped > 0 {
            problems.push(format!("{skipped} tests skipped `{service}`"));
        }
        if used == 0 && all_ran {
            problems.push(format!("no test used `{service}`"));
        }
    }
    (report, problems)
}

#[cfg(test)]
mod tests {
    use super::{judge, take_major};

    #[test]
    fn a_service_that_nobody_used_or_somebody_skipped_fails() {
        let others = "nats\tused\tc\nsqs\tused\td\nkafka\tused\te\n";
        let all = format!("pg\tused\ta\npg\tused\ta\namqp\tused\tb\n{others}");
        assert_eq!(judge(&all, true).1, Vec::<String>::new());
        assert_eq!(judge(&format!("pg\tused\ta\n{others}"), true).1, ["no test used `amqp`"]);
        assert_eq!(judge("pg\tused\ta\n", false).1, Vec::<String>::new());
        assert_eq!(judge("pg\tused\ta\namqp\tused\tb\nnats\tskipped\tc\n", false).1, ["1 tests skipped `nats`"]);
        assert!(judge("pg\tused\ta\npg\tused\tb\n", true).0.contains("pg: used by 2 tests"));
    }

    #[test]
    fn the_version_is_taken_out() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(take_major(&words("a --pg 14 b")), Ok((Some(14), words("a b"))));
        assert_eq!(take_major(&words("a b")), Ok((None, words("a b"))));
        assert!(take_major(&words("--pg 9")).is_err());
        assert!(take_major(&words("--pg")).is_err());
    }
}
