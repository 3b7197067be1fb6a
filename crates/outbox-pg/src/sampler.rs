//! What gauges show of the database: a few cheap questions, asked in the background now and then. Whoever wants to know
//! reads the last answers from memory.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, PgConnection};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::config::{PgConfig, PgConfigError};
use crate::schema::SchemaName;
use crate::status::{self, Count, Pending};

/// Between two rounds of questions: as often as the figures are usually collected.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(15);

/// The longest time to connect, login included.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// The longest time for a round: five statements of at most 2 s each, and their ways.
const ROUND_DEADLINE: Duration = Duration::from_secs(12);

/// Each so many rounds pending events are counted from the very first id; in between from the first that was pending, so
/// that rows that are long deleted but not vacuumed are not walked over. A late commit below that is seen a minute later.
const FROM_ZERO_EACH: u32 = 4;

/// Writers that are looked at.
const MAX_WRITERS: i64 = 1_000;

/// What the database has answered in the last round. What it did not answer is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Events that are committed and not yet confirmed, of all routes.
    pub pending: Option<Pending>,
    /// Events that have failed and wait, and those of them that wait for an operator.
    pub retries: Option<(Count, Count)>,
    /// Events that were given up.
    pub dead_letters: Option<Count>,
    /// How long the oldest transaction that writes to `events` has been open; zero when there is none. A lower bound, for
    /// sessions of other roles that this one may not ask about: since they were first seen.
    pub oldest_writer_age: Option<Duration>,
    /// The age, in transactions, of the oldest snapshot that holds vacuum back.
    pub oldest_xmin_age: Option<u64>,
}

/// Asks every [`SAMPLE_INTERVAL`], over a connection of its own.
#[derive(Debug)]
pub struct Sampler {
    options: PgConnectOptions,
    schema: SchemaName,
    figures: watch::Sender<Figures>,
    rounds: u32,
    /// All that was pending in the last round is above it.
    above: i64,
    writers: Writers,
    told: Option<String>,
}

/// The answers of the last round; cheap to clone and to ask, never touches the database.
#[derive(Debug, Clone)]
pub struct LatestFigures(watch::Receiver<Figures>);

impl LatestFigures {
    /// The answers of the last round. None of them is older than [`SAMPLE_INTERVAL`] and the time that a round may take,
    /// about half a minute together: a failed round leaves nothing, and so does a sampler that has ended.
    #[must_use]
    pub fn get(&self) -> Figures {
        if self.0.has_changed().is_err() {
            return Figures::default();
        }
        self.0.borrow().clone()
    }
}

impl Sampler {
    /// A sampler of the database of a config.
    ///
    /// # Errors
    /// [`PgConfigError`] when a value can't be used. Nothing is connected yet.
    pub fn new(config: &PgConfig) -> Result<Self, PgConfigError> {
        Ok(Self {
            options: config.connect_options()?,
            schema: config.schema.clone(),
            figures: watch::Sender::default(),
            rounds: 0,
            above: 0,
            writers: Writers::default(),
            told: None,
        })
    }

    /// A handle on the answers.
    #[must_use]
    pub fn latest(&self) -> LatestFigures {
        LatestFigures(self.figures.subscribe())
    }

    /// Asks for ever. Outages of the database don't end it.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection; the handles then tell nothing.
    pub async fn run(mut self) -> Infallible {
        let mut ticks = interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut connection = None;
        loop {
            ticks.tick().await;
            let mut figures = Figures::default();
            let open = match connection.take() {
                Some(open) => Ok(open),
                None => self.connect().await,
            };
            let failed = match open {
                Ok(mut open) => match timeout(ROUND_DEADLINE, self.round(&mut open, &mut figures)).await {
                    Ok(Ok(())) => {
                        connection = Some(open);
                        None
                    }
                    Ok(Err(error)) => Some(error.to_string()),
                    Err(_) => Some(format!("no answer within {ROUND_DEADLINE:?}")),
                },
                Err(error) => Some(error),
            };
            if let Some(error) = failed {
                // An outage is told by the routes.
                tracing::debug!(error, "the database's figures could not be asked for");
            }
            self.figures.send_replace(figures);
        }
    }

    async fn connect(&self) -> Result<PgConnection, String> {
        match timeout(CONNECT_DEADLINE, self.options.connect()).await {
            Ok(connected) => connected.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no connection within {CONNECT_DEADLINE:?}")),
        }
    }

    /// Each question in a transaction of its own: one that is refused leaves the others their answers.
    async fn round(&mut self, conn: &mut PgConnection, figures: &mut Figures) -> Result<(), sqlx::Error> {
        let above = if self.rounds.is_multiple_of(FROM_ZERO_EACH) { 0 } else { self.above };
        self.rounds = self.rounds.wrapping_add(1);
        let mut refused = None;

        begin(conn).await?;
        figures.pending = answer(status::pending(conn, &self.schema, above).await, &mut refused)?;
        if let Some(Pending { first: Some(first), .. }) = figures.pending {
            self.above = first.saturating_sub(1);
        }
        end(conn).await?;

        begin(conn).await?;
        figures.retries = answer(status::retries(conn, &self.schema).await, &mut refused)?;
        end(conn).await?;

        begin(conn).await?;
        figures.dead_letters = answer(status::dead_letters(conn, &self.schema).await, &mut refused)?;
        end(conn).await?;

        begin(conn).await?;
        let writers = answer(writers(conn, &self.schema).await, &mut refused)?;
        figures.oldest_writer_age = writers.map(|writers| self.writers.oldest(writers, Instant::now()));
        end(conn).await?;

        begin(conn).await?;
        figures.oldest_xmin_age = answer(oldest_xmin(conn).await, &mut refused)?;
        end(conn).await?;

        if refused != self.told {
            if let Some(error) = &refused {
                tracing::warn!(error, "the database refuses a question: some gauges are left out");
            }
            self.told = refused;
        }
        Ok(())
    }
}

async fn begin(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    conn.execute(sqlx::raw_sql(include_str!("sql/sample_begin.sql"))).await.map(|_| ())
}

async fn end(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    conn.execute(sqlx::raw_sql(include_str!("sql/sample_end.sql"))).await.map(|_| ())
}

/// A question that the database refuses has no answer; anything else ends the round.
fn answer<T>(asked: Result<T, sqlx::Error>, refused: &mut Option<String>) -> Result<Option<T>, sqlx::Error> {
    match asked {
        Ok(answer) => Ok(Some(answer)),
        // The row of pg_class is missing: so is the table.
        Err(error @ (sqlx::Error::Database(_) | sqlx::Error::RowNotFound)) => {
            refused.get_or_insert_with(|| error.to_string());
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// A transaction that writes to `events`, and for how many microseconds it has been open.
type Writer = (String, Option<i64>);

async fn writers(conn: &mut PgConnection, schema: &SchemaName) -> Result<Vec<Writer>, sqlx::Error> {
    let query = sqlx::query_as(AssertSqlSafe(schema.sql(include_str!("sql/sample_writers.sql")))).persistent(false);
    query.bind(MAX_WRITERS).fetch_all(conn).await
}

async fn oldest_xmin(conn: &mut PgConnection) -> Result<u64, sqlx::Error> {
    let query = sqlx::query_scalar(include_str!("sql/sample_xmin.sql")).persistent(false);
    let age: i64 = query.fetch_one(conn).await?;
    Ok(u64::try_from(age).unwrap_or(0))
}

/// Writers of the last round and when each was first seen.
#[derive(Debug, Default)]
struct Writers {
    seen: HashMap<String, Instant>,
}

impl Writers {
    fn oldest(&mut self, writers: Vec<Writer>, now: Instant) -> Duration {
        let mut oldest = Duration::ZERO;
        let mut seen = HashMap::with_capacity(writers.len());
        for (transaction, micros) in writers {
            let since = self.seen.get(&transaction).copied().unwrap_or(now);
            let told = Duration::from_micros(micros.and_then(|micros| u64::try_from(micros).ok()).unwrap_or(0));
            oldest = oldest.max(told).max(now.saturating_duration_since(since));
            seen.insert(transaction, since);
        }
        self.seen = seen;
        oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_may_not_be_asked_about_is_as_old_as_it_is_known() {
        let second = Duration::from_secs(1);
        let (begun, mut writers) = (Instant::now(), Writers::default());
        let all = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), None)).collect::<Vec<_>>();
        assert_eq!(writers.oldest(all(&["3/1"]), begun), Duration::ZERO);
        assert_eq!(writers.oldest(all(&["3/1", "4/1"]), begun + 15 * second), 15 * second);
        assert_eq!(writers.oldest(vec![("4/1".to_owned(), Some(40_000_000))], begun + 30 * second), 40 * second);
        assert_eq!(writers.oldest(Vec::new(), begun + 45 * second), Duration::ZERO);
        assert_eq!(writers.oldest(all(&["3/1"]), begun + 60 * second), Duration::ZERO, "another one");
        assert_eq!(writers.seen.len(), 1);
    }
}
