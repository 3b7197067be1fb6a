//! The doorbell: an idle relay sleeps until a producer's commit rings.
//!
//! A trigger notifies only while a relay sleeps, so producers pay next to nothing while there is work. When it may sleep
//! is decided by [`bell`], without I/O; a test searches every interleaving of it. [`line`] is the session that listens.
//! The fallback poll is always on: only the death of the key's holder needs it.

mod bell;
#[cfg(test)]
mod bell_tests;
mod line;
mod routes;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::Wakeup;
use sqlx::postgres::PgConnectOptions;
use tokio::time::{Instant, sleep};

use self::bell::{Bell, Key, Seen};
use self::line::{Line, Silent};
use self::routes::{RouteWakeup, Routes};
use crate::config::{PgConfig, PgConfigError};
use crate::schema::SchemaName;

/// Where commits come so often, a relay that has just been rung stays awake for this long: to sleep between them would
/// make each of them notify.
const LINGER: Duration = Duration::from_millis(20);

/// A sleep that lasted this long says that commits are rare.
const LONG_SLEEP: Duration = Duration::from_millis(200);

/// Between two tries for the key while producers hold it.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Between two tries to open the listening session.
const REOPEN_PAUSE: Duration = Duration::from_secs(5);

/// Wakes all routes of a process. [`run`](Self::run) must run beside them: while it does not, or while the database
/// can't be listened to, routes poll every 2 ms at first and every 50 ms when they keep finding nothing.
#[derive(Debug)]
pub struct Doorbell {
    routes: Arc<Routes>,
    listening: PgConnectOptions,
    notifying: PgConnectOptions,
    schema: SchemaName,
    fallback: Duration,
}

/// A handle on a doorbell's state; cheap to clone and to ask, never touches the database.
#[derive(Debug, Clone)]
pub struct DoorbellHealth {
    routes: Arc<Routes>,
}

impl DoorbellHealth {
    /// Whether a session listens now. While none does, idle routes poll.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        self.routes.is_listening()
    }
}

impl Doorbell {
    /// A doorbell for the database of a config, listening through its `listen_url` if it has one. `fallback` is how often
    /// a sleeping relay reads without having been rung.
    ///
    /// # Errors
    /// [`PgConfigError`] when a value can't be used. Nothing is connected yet.
    pub fn new(config: &PgConfig, fallback: Duration) -> Result<Self, PgConfigError> {
        let (listening, notifying) = (config.listen_options()?, config.connect_options()?);
        let schema = config.schema.clone();
        Ok(Self { routes: Routes::new(), listening, notifying, schema, fallback })
    }

    /// The wake-up of one route.
    #[must_use]
    pub fn wakeup(&self) -> Box<dyn Wakeup> {
        Box::new(RouteWakeup::new(&self.routes))
    }

    /// Tells whether it listens.
    #[must_use]
    pub fn health(&self) -> DoorbellHealth {
        DoorbellHealth { routes: Arc::clone(&self.routes) }
    }

    /// Listens for ever. Outages of the database don't end it.
    ///
    /// # Cancel safety
    /// Dropping the future closes the listening session; the routes poll from then on.
    pub async fn run(self) -> Infallible {
        let _awake = self.routes.awake_at_the_end();
        let mut told = String::new();
        loop {
            let why = match Line::open(&self.listening, &self.notifying, &self.schema).await {
                Ok(mut line) => {
                    tracing::info!("the doorbell listens: an idle relay sleeps until a commit rings");
                    told.clear();
                    self.routes.set_listening(true);
                    let why = self.serve(&mut line).await;
                    self.routes.set_listening(false);
                    why
                }
                Err(why) => why,
            };
            self.routes.wake();
            // Each reason once until it listens again; an outage is told by the routes.
            let text = why.to_string();
            if text == told {
                tracing::debug!(error = text, "the doorbell is still not listening");
            } else {
                tracing::warn!(error = text, "the doorbell does not listen: idle routes poll every 50 ms");
                told = text;
            }
            sleep(REOPEN_PAUSE).await;
        }
    }

    /// Goes from state to state until the session is lost.
    async fn serve(&self, line: &mut Line) -> Silent {
        let mut bell = Bell::Awake;
        let (mut slept_since, mut linger, mut pause) = (None::<Instant>, Duration::ZERO, Duration::ZERO);
        loop {
            let seen = match bell {
                Bell::Awake => {
                    if let Some(since) = slept_since.take() {
                        linger = if since.elapsed() < LONG_SLEEP { LINGER } else { Duration::ZERO };
                    }
                    sleep(std::mem::take(&mut pause)).await;
                    self.routes.until_idle(linger).await;
                    Ok(Seen::Nothing)
                }
                Bell::Asking => line.ask().await.map(|key| {
                    if key == Key::Busy {
                        pause = BUSY_PAUSE;
                    }
                    Seen::Answer(key)
                }),
                Bell::Verifying(_) => {
                    let verified = self.routes.read_once_more();
                    tokio::select! {
                        seen = verified => Ok(seen),
                        rung = line.rung() => rung.map(|()| Seen::Rung),
                    }
                }
                Bell::Asleep(_) => {
                    slept_since.get_or_insert_with(Instant::now);
                    tokio::select! {
                        () = self.routes.work() => Ok(Seen::Work),
                        rung = line.rung() => rung.map(|()| Seen::Rung),
                        () = sleep(self.fallback) => line.check().await.map(|()| Seen::Late),
                    }
                }
                Bell::GivingBack => line.give_back().await.map(|()| Seen::GivenBack),
            };
            let next = match seen {
                Ok(seen) => bell.after(seen),
                Err(why) => return why,
            };
            if next.is_awake() && !bell.is_awake() {
                self.routes.wake();
            } else if !next.is_awake() && bell.is_awake() {
                self.routes.sleep();
            }
            bell = next;
        }
    }
}
