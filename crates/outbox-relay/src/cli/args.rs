//! What can be typed.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use super::blocked::BlockedCommand;
use super::enqueue::EnqueueArgs;

const EXAMPLES: &str = "\
Examples:
  # No file: PostgreSQL to JSON lines on stdout
  export OUTBOX__DATABASE__URL=postgres://localhost/app OUTBOX__ROUTE__0__STDOUT={}
  outbox-relay migrate up
  outbox-relay enqueue --aggregate-type order --aggregate-id 1 --event-type order.placed --payload '{\"total\": 5}'
  outbox-relay run

  # Is everything in place? What is in force, and where does it come from?
  outbox-relay check --connect --show

Configuration: the file named by --config, else outbox.toml in the working directory if it is there;
OUTBOX__<TABLE>__<KEY> over the file; --set over both. Exit codes: 0 done, 1 failed, 2 bad usage or configuration.";

/// Brings the events of a transactional outbox in PostgreSQL to a broker: in order, none lost.
#[derive(Debug, Parser)]
#[command(name = "outbox-relay", version, after_help = EXAMPLES, max_term_width = 120)]
pub(crate) struct Args {
    /// The config file [default: outbox.toml, if it is there]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Sets one key over file and environment, for example relay.window=500; can be repeated
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,

    /// How results and errors are printed
    #[arg(long, global = true, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// One JSON value on one line.
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs the relay until SIGTERM or SIGINT
    ///
    /// Starts also while the database or the broker is down and goes on as soon as they are there. On the first signal
    /// it stops claiming, waits up to relay.shutdown_grace for the broker's answers, settles, gives the route back and
    /// exits 0. A second signal exits at once. Probes answer on admin.listen: /livez and /readyz.
    #[command(after_help = "Example:\n  outbox-relay run --config /etc/outbox.toml --set log.format=json")]
    Run,

    /// Creates and updates the outbox's tables
    #[command(subcommand)]
    Migrate(Migrate),

    /// Checks the configuration, and with --connect database and broker
    ///
    /// Without --connect nothing is connected: fit for a build pipeline. Exits 0 when a relay could run, 1 when
    /// database or broker stand in the way, 2 when the configuration is wrong.
    #[command(after_help = "Examples:\n  outbox-relay check\n  outbox-relay check --connect --output json")]
    Check {
        /// Also asks database (version, tables, rights) and broker
        #[arg(long)]
        connect: bool,
        /// Prints every value in force and where it comes from, secrets hidden
        #[arg(long)]
        show: bool,
    },

    /// Tells what the outbox holds and who works on it
    #[command(after_help = "Example:\n  outbox-relay status --output json")]
    Status,

    /// Lists, retries or skips events that were given up and hold up their aggregates (on_dead = "block")
    ///
    /// A running relay sees the change within a second or so. Each change leaves a row in the table `audit`.
    #[command(subcommand, after_help = super::blocked::EXAMPLES)]
    Blocked(BlockedCommand),

    /// Writes events into the outbox, in one transaction
    #[command(after_help = super::enqueue::EXAMPLES)]
    Enqueue(Box<EnqueueArgs>),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Migrate {
    /// Applies what is missing, in one transaction; run again it does nothing
    Up {
        /// Leaves out the trigger that rings, or takes it away: for databases with PREPARE TRANSACTION; set
        /// relay.wakeup = "poll" then
        #[arg(long)]
        no_doorbell: bool,
    },
    /// Tells which migrations are applied and which are missing; exits 1 when some are missing
    Status,
    /// Prints the SQL of all migrations, for administrators who run it themselves; connects to nothing
    #[command(after_help = "Example:\n  outbox-relay migrate sql --roles | psql app")]
    Sql {
        /// Also prints the roles outbox_producer, outbox_relay and outbox_reader with their rights
        #[arg(long)]
        roles: bool,
        /// Leaves out the trigger that rings
        #[arg(long)]
        no_doorbell: bool,
    },
}
