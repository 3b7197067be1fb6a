//! The task runner: `cargo xtask <command>`. It depends on std, a JSON reader and the service launchers only, so that
//! it compiles in seconds.

mod bench;
mod cargo;
mod chaos;
mod ci;
mod conformance;
mod demo;
mod servers;
mod services;
mod test;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask <command>

  demo [--broker stdout|rabbitmq|nats|sqs|kafka|webhook] [...]
                                           run the demo against services started for it
  test [--full] [--pg MAJOR] [nextest arguments]
                                           run all tests against real services
  bench [--events N] [--rounds N]          events per second against two usual relays (docs/performance.md)
  chaos [--minutes N] [--seed S] [--seeds N] [--broker rabbitmq|nats]
                                           faults by a schedule, and what the history says
  tidy                                     check the invariants that the compiler does not
  ci [--full]                              everything a change must pass; --full: before a release
  services up [--pg MAJOR] | down | status keep services running between runs

A service is taken from its URL (OUTBOX_TEST_PG_URL, and AMQP, NATS, SQS, KAFKA in place of PG), else from binaries on
this machine, else it is downloaded without root into target/services.";

/// What a command returns: the text of a failure stands alone.
type Outcome<T = ()> = Result<T, String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", arguments.as_slice()),
    };
    let outcome = match command {
        "services" => services::run(rest),
        "test" => test::run(rest),
        "tidy" => tidy::run(rest),
        "ci" => ci::run(rest),
        "demo" => demo::run(rest),
        "bench" => bench::run(rest),
        "chaos" => chaos::run(rest),
        "help" | "--help" | "-h" => {
            println!("{HELP}");
            Ok(())
        }
        unknown => Err(format!("no command `{unknown}`\n\n{HELP}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("xtask: {problem}");
            ExitCode::FAILURE
        }
    }
}
