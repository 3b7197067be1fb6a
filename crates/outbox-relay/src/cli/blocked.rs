//! `blocked list|retry|skip`: what an operator does about events that were given up and hold up their aggregates.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use outbox_core::EventId;
use outbox_pg::blocked::{self, Blocked, Operator, Selector};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::args::Output;
use super::failure::Failure;
use super::output::{Items, print};
use super::settings::Settings;

pub(crate) const EXAMPLES: &str = "\
Examples:
  outbox-relay blocked list --aggregate-type order
  outbox-relay blocked retry --aggregate-type order --aggregate-id 17 --reason 'consumer is mended'
  outbox-relay blocked skip --event-id 0191d1a2-0000-7000-8000-000000000001 --reason 'sent by hand'
  outbox-relay blocked retry --all --dry-run --output json";

const RETRY_EXAMPLE: &str = "\
Example:
  outbox-relay blocked retry --aggregate-type order --aggregate-id 17 --reason 'consumer is mended'";

const SKIP_EXAMPLE: &str = "\
Example:
  outbox-relay blocked skip --event-id 0191d1a2-0000-7000-8000-000000000001 --reason 'sent by hand'";

const LIST_EXAMPLE: &str = "\
Examples:
  outbox-relay blocked list --aggregate-type order
  outbox-relay blocked list --after 4711 --limit 1000 --output json";

#[derive(Debug, Subcommand)]
pub(crate) enum BlockedCommand {
    /// Lists blocked events, the first of each aggregate that waits, in the order of their ids
    #[command(after_help = LIST_EXAMPLE)]
    List {
        #[command(flatten)]
        which: Which,
        /// At most so many
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
        limit: u32,
        /// Only those with a higher id: the last one of the page before
        #[arg(long, default_value_t = 0, value_name = "ID")]
        after: i64,
    },
    /// Sends them again: attempts and crashes start anew, and their aggregates go on behind them
    #[command(after_help = RETRY_EXAMPLE)]
    Retry(ChangeArgs),
    /// Moves them to the dead letters: their aggregates go on without them
    #[command(after_help = SKIP_EXAMPLE)]
    Skip(ChangeArgs),
}

/// Which events.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The event with this id; can be repeated
    #[arg(long = "event-id", value_name = "UUID")]
    event_ids: Vec<Uuid>,
    /// Events of aggregates of this type
    #[arg(long, value_name = "NAME")]
    aggregate_type: Option<String>,
    /// Events of aggregates with this id
    #[arg(long, value_name = "ID")]
    aggregate_id: Option<String>,
    /// All of them
    #[arg(long, conflicts_with_all = ["event_ids", "aggregate_type", "aggregate_id"])]
    all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    #[command(flatten)]
    which: Which,
    /// Only tells how many it would be
    #[arg(long)]
    dry_run: bool,
    /// Why, for the table `audit`
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Retry,
    Skip,
}

#[derive(Debug, Serialize)]
struct Item {
    id: i64,
    event_id: EventId,
    aggregate_type: String,
    aggregate_id: String,
    event_type: String,
    attempts: u32,
    crashes: u32,
    kind: String,
    error: String,
    blocked_seconds: f64,
}

#[derive(Debug, Serialize)]
struct Affected {
    affected: u64,
}

pub(crate) async fn blocked(settings: &Settings, command: &BlockedCommand, output: Output) -> Result<(), Failure> {
    match command {
        BlockedCommand::List { which, limit, after } => list(settings, which, *limit, *after, output).await,
        BlockedCommand::Retry(args) => change(settings, args, Action::Retry, output).await,
        BlockedCommand::Skip(args) => change(settings, args, Action::Skip, output).await,
    }
}

async fn list(settings: &Settings, which: &Which, limit: u32, after: i64, output: Output) -> Result<(), Failure> {
    let mut connection = super::database::connect(settings).await?;
    let found = page(settings, &mut connection, &which.selector(), after, limit).await?;
    let mut text = String::new();
    for event in &found {
        let Blocked { id, event_id, aggregate_type, aggregate_id, event_type, attempts, crashes, kind, error, .. } =
            event;
        let since = event.since.as_secs();
        // Names and errors may hold anything: one event is one line. Writing to a String can't fail.
        let _ = writeln!(
            text,
            "{id}  {event_id}  {} {}  {}  {kind} after {attempts} attempts and {crashes} crashes, {since} s ago: {}",
            aggregate_type.escape_debug(),
            aggregate_id.escape_debug(),
            event_type.escape_debug(),
            error.escape_debug(),
        );
    }
    if let Some(last) = found.last().filter(|_| u32::try_from(found.len()).is_ok_and(|rows| rows == limit)) {
        let _ = writeln!(text, "there may be more: --after {}", last.id);
    }
    print(output, &text, &Items { items: found.into_iter().map(Item::from).collect() })
}

async fn change(settings: &Settings, args: &ChangeArgs, action: Action, output: Output) -> Result<(), Failure> {
    if !args.which.says_which() {
        let needed = "say which events: --event-id, --aggregate-type, --aggregate-id or --all";
        return Err(Failure::Usage(needed.to_owned()));
    }
    let (selector, schema) = (args.which.selector(), &settings.database.schema);
    let mut connection = super::database::connect(settings).await?;
    let (mut affected, mut next) = (0, Some(0));
    while let Some(after) = next {
        let done = if args.dry_run {
            let found = page(settings, &mut connection, &selector, after, blocked::MAX_CHANGED).await?;
            let full = found.len() == blocked::MAX_CHANGED as usize;
            Ok((found.len() as u64, found.last().filter(|_| full).map(|event| event.id)))
        } else {
            let operator = Operator { os_user: os_user(), reason: args.reason.clone() };
            let making = async {
                let changed = match action {
                    Action::Retry => blocked::retry(&mut connection, schema, &selector, &operator, after).await,
                    Action::Skip => blocked::skip(&mut connection, schema, &selector, &operator, after).await,
                };
                changed.map_err(|error| Failure::failed(&error))
            };
            super::database::answer(making).await.map(|changed| (changed.affected, changed.next))
        };
        let told = |failure| match failure {
            Failure::Failed(why) if affected > 0 => Failure::Failed(format!("{affected} are done; {why}")),
            other => other,
        };
        let (count, more) = done.map_err(told)?;
        (affected, next) = (affected + count, more);
    }
    let text = match (args.dry_run, action) {
        (true, Action::Retry) => format!("{affected} would be sent again"),
        (true, Action::Skip) => format!("{affected} would become dead letters"),
        (false, Action::Retry) => format!("{affected} will be sent again"),
        (false, Action::Skip) => format!("{affected} became dead letters"),
    };
    print(output, &text, &Affected { affected })
}

async fn page(
    settings: &Settings,
    connection: &mut PgConnection,
    selector: &Selector,
    after: i64,
    limit: u32,
) -> Result<Vec<Blocked>, Failure> {
    let schema = &settings.database.schema;
    let listed = async {
        blocked::list(connection, schema, selector, after, limit).await.map_err(|error| Failure::failed(&error))
    };
    super::database::answer(listed).await
}

/// Who the operating system says we are, by its usual variables.
fn os_user() -> Option<String> {
    ["SUDO_USER", "USER", "LOGNAME"]
        .into_iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|name| !name.is_empty())
}

impl Which {
    const fn says_which(&self) -> bool {
        self.all || !self.event_ids.is_empty() || self.aggregate_type.is_some() || self.aggregate_id.is_some()
    }

    fn selector(&self) -> Selector {
        Selector {
            event_ids: self.event_ids.iter().copied().map(EventId::from_uuid).collect(),
            aggregate_type: self.aggregate_type.clone(),
            aggregate_id: self.aggregate_id.clone(),
        }
    }
}

impl From<Blocked> for Item {
    fn from(event: Blocked) -> Self {
        Self {
            id: event.id,
            event_id: event.event_id,
            aggregate_type: event.aggregate_type,
            aggregate_id: event.aggregate_id,
            event_type: event.event_type,
            attempts: event.attempts,
            crashes: event.crashes,
            kind: event.kind,
            error: event.error,
            blocked_seconds: event.since.as_secs_f64(),
        }
    }
}
