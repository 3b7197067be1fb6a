//! The command line: `outbox-relay run`, `migrate`, `check`, `status`, `blocked` and `enqueue`.
//!
//! The only place that reads the environment, files and standard input. `outbox-relay --help` and
//! `docs/configuration.md` tell how it is used.

mod admin;
mod args;
mod blocked;
mod brokers;
mod check;
mod database;
mod enqueue;
mod failure;
mod logging;
mod migrate;
mod output;
mod run;
mod settings;
mod signals;
mod status;
mod visitors;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use self::args::{Args, Command, Migrate};
use self::failure::Failure;
use self::settings::{Inputs, Needs};

/// Runs the command line of this process: the whole of `main`.
///
/// Exit codes: 0 done, 1 failed, 2 bad usage or configuration. It reads the process's arguments and environment and
/// installs a logger on stderr, so it is for binaries only.
#[must_use]
pub fn main() -> ExitCode {
    let args = Args::parse();
    let output = args.output;
    let Err(failure) = dispatch(args) else { return ExitCode::SUCCESS };
    // Where stderr is closed too, the exit code has to say it.
    let _ = std::io::stderr().write_all(failure.render(output).as_bytes());
    ExitCode::from(failure.exit_code())
}

fn dispatch(args: Args) -> Result<(), Failure> {
    let needs = match &args.command {
        Command::Run | Command::Check { .. } => Needs { database: true, route: true },
        Command::Migrate(Migrate::Sql { .. }) => Needs { database: false, route: false },
        Command::Migrate(_) | Command::Status | Command::Blocked(_) | Command::Enqueue(_) => {
            Needs { database: true, route: false }
        }
    };
    let inputs = Inputs { file: args.config, env: std::env::vars_os().collect(), flags: args.set };
    let settings = settings::load(&inputs, needs).map_err(Failure::Config)?;
    logging::start(settings.log);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Failed(format!("the runtime can't be started: {error}")))?;
    let output = args.output;
    let result = runtime.block_on(async {
        match args.command {
            Command::Run => run::run(settings).await,
            Command::Migrate(Migrate::Up { no_doorbell }) => migrate::up(&settings, no_doorbell, output).await,
            Command::Migrate(Migrate::Status) => migrate::status(&settings, output).await,
            Command::Migrate(Migrate::Sql { roles, no_doorbell }) => {
                migrate::sql(&settings, roles, no_doorbell, output)
            }
            Command::Check { connect, show } => check::check(&settings, connect, show, output).await,
            Command::Status => status::status(&settings, output).await,
            Command::Blocked(command) => blocked::blocked(&settings, &command, output).await,
            Command::Enqueue(args) => enqueue::enqueue(&settings, &args, output).await,
        }
    });
    // A write to a pipe that nobody reads can't be cancelled; the process must not wait for it.
    runtime.shutdown_background();
    result
}
