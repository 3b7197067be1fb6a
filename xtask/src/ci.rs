//! `cargo xtask ci`: everything a change must pass, the cheapest first; it stops at the first failure.

use std::process::Command;
use std::time::Instant;

use outbox_services::install::POSTGRES_MAJORS;

use crate::cargo::{bin_dir, cargo, has_subcommand, must};
use crate::{Outcome, chaos, demo, test, tidy};

/// Features of `outbox-relay` that `--full` checks one by one; what each crate offers by default is checked always. The
/// short run leaves them to the look that `tidy` takes at each one's dependencies: every set builds them anew.
const RELAY_FEATURES: [&str; 3] = ["", "postgres", "cli"];

/// The relay's brokers: `--full` checks the library and the binary with each of them alone.
const RELAY_BROKERS: [&str; 5] = ["rabbitmq", "nats", "sqs", "kafka", "webhook"];

/// Every broker of the demo.
const DEMOS: [&str; 6] = ["stdout", "rabbitmq", "nats", "sqs", "kafka", "webhook"];

/// Tools that deepen `--full` where they are installed, and what each adds.
const OPTIONAL_TOOLS: [(&str, &str); 3] = [
    ("deny", "licences, bans and sources of dependencies"),
    ("hack", "every subset of features"),
    ("semver-checks", "accidental breaks of the public interface"),
];

/// What no step looks at, said at the end of `--full`.
const NEVER_CHECKED: [&str; 3] = [
    "that the oldest compiler named by `rust-version` builds it: the one that is installed is used",
    "`cargo package` of each crate: nothing is published",
    "security advisories: their database would have to be downloaded",
];

/// The packages that people depend on: their default features are linted by themselves, for in the whole workspace
/// features are unified.
const LIBRARIES: [&str; 8] = [
    "--package=outbox-core",
    "--package=outbox-kafka",
    "--package=outbox-nats",
    "--package=outbox-pg",
    "--package=outbox-rabbitmq",
    "--package=outbox-relay",
    "--package=outbox-sqs",
    "--package=outbox-webhook",
];

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let full = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--full"] => true,
        _ => return Err("usage: cargo xtask ci [--full]".to_owned()),
    };
    let mut steps = Steps::default();
    let checked = steps.run_all(full);
    steps.report();
    checked
}

/// The steps done so far with their durations.
#[derive(Default)]
struct Steps {
    done: Vec<(String, u64)>,
}

impl Steps {
    fn run_all(&mut self, full: bool) -> Outcome {
        self.step("format", || must(&mut cargo(&["fmt", "--all", "--check"])))?;
        self.step("tidy", || tidy::run(&[]))?;
        self.step("clippy, all features", || clippy(&["--workspace", "--all-features"]))?;
        self.step("clippy, default features", || clippy(&LIBRARIES))?;
        self.step("tests", || test::run(&words(if full { "--full" } else { "" })))?;
        for broker in DEMOS {
            self.step(&format!("demo on {broker}"), || {
                demo::run_built(&words(&format!("--broker {broker} --events 2000")))
            })?;
        }
        self.step("demo with the relay killed four times", || {
            demo::run_built(&words("--broker rabbitmq --kill 4 --events 8000"))
        })?;
        if full {
            for broker in ["rabbitmq", "nats"] {
                let seeds = format!("--minutes 1 --seeds 10 --broker {broker}");
                self.step(&format!("chaos on {broker}, ten seeds"), || chaos::run(&words(&seeds)))?;
            }
        }
        for major in [*POSTGRES_MAJORS.start(), *POSTGRES_MAJORS.end()] {
            // `cargo test`, which stands in for an absent nextest, has no filter by package within a workspace.
            let short = !full && has_subcommand("nextest");
            let filter = if short { "-E package(outbox-pg)" } else { "" };
            let name = format!("tests on PostgreSQL {major}{}", if short { " (store only)" } else { "" });
            self.step(&name, || test::run(&words(&format!("--pg {major} {filter}"))))?;
        }
        self.step("documentation", || {
            let mut doc = cargo(&["doc", "--workspace", "--all-features", "--no-deps"]);
            must(doc.env("RUSTDOCFLAGS", "-D warnings"))
        })?;
        if full { self.run_full() } else { Ok(()) }
    }

    fn run_full(&mut self) -> Outcome {
        for features in RELAY_FEATURES {
            self.step_features(features)?;
        }
        for broker in RELAY_BROKERS {
            for features in [broker.to_owned(), format!("cli,{broker}")] {
                self.step_features(&features)?;
            }
        }
        self.step("clippy, outbox-rabbitmq with `tls`", || clippy(&["-p", "outbox-rabbitmq", "--features", "tls"]))?;
        for broker in DEMOS {
            self.step(&format!("demo on {broker}, with the relay made of the parts"), || {
                demo::run_built(&words(&format!("--broker {broker} --custom-relay --events 2000")))
            })?;
        }
        self.step("clippy, the examples for no broker", || clippy(&["-p", "outbox-examples"]))?;
        // Not for its figures: that it runs, as the tests have built it.
        self.step("benchmark, a smoke run", || {
            must(Command::new(bin_dir().join("bench")).args(["--events", "20000", "--rounds", "1"]))
        })?;
        if has_subcommand("deny") {
            self.step("dependencies", || must(&mut cargo(&["deny", "check", "licenses", "bans", "sources"])))?;
        }
        if has_subcommand("hack") {
            let powerset = ["hack", "check", "--feature-powerset", "-p", "outbox-relay"];
            self.step("every subset of features", || must(&mut cargo(&powerset)))?;
        }
        for (tool, adds) in OPTIONAL_TOOLS {
            if !has_subcommand(tool) {
                println!("not checked, for `cargo-{tool}` is not installed: {adds}");
            } else if tool == "semver-checks" {
                println!("not checked, for nothing is released yet: {adds}");
            }
        }
        for what in NEVER_CHECKED {
            println!("not checked: {what}");
        }
        Ok(())
    }

    fn step_features(&mut self, features: &str) -> Outcome {
        let arguments = ["-p", "outbox-relay", "--no-default-features", "--features", features];
        self.step(&format!("clippy, outbox-relay with `{features}`"), || clippy(&arguments))
    }

    fn step(&mut self, name: &str, work: impl FnOnce() -> Outcome) -> Outcome {
        println!("\n==== {name}");
        let started = Instant::now();
        let outcome = work();
        self.done.push((name.to_owned(), started.elapsed().as_secs()));
        outcome.map_err(|problem| format!("{name}: {problem}"))
    }

    fn report(&self) {
        println!("\n==== durations");
        for (name, seconds) in &self.done {
            println!("{seconds:>5} s  {name}");
        }
    }
}

fn clippy(what: &[&str]) -> Outcome {
    must(cargo(&["clippy", "--all-targets"]).args(what).args(["--", "-D", "warnings"]))
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
