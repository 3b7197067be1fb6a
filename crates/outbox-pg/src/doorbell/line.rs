//! The listening session: one connection that receives notifications and holds the key.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, PgConnection};
use tokio::time::{Instant, timeout, timeout_at};
use uuid::Uuid;

use super::bell::Key;
use crate::SchemaName;

/// The longest time to connect, login included.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// The longest wait for an answer to a statement that never waits for a lock.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// How long a notification to itself may take: without one there is no session, only somebody's connection.
const ECHO_DEADLINE: Duration = Duration::from_secs(2);

/// An idle session is asked for a sign of life this often: the driver has no keepalive of its own.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// Why there is no doorbell.
#[derive(Debug, thiserror::Error)]
pub(super) enum Silent {
    /// The trigger that rings is missing or disabled.
    #[error("the trigger outbox_doorbell on {schema}.events is missing or disabled; run `outbox-relay migrate up`")]
    NoTrigger { schema: String },
    /// Notifications don't come through: a pooler hands the connection to others between transactions.
    #[error(
        "a notification sent to this connection did not arrive within {ECHO_DEADLINE:?}, as behind a pooler in \
         transaction mode; set database.listen_url to a direct connection"
    )]
    NoEcho,
    /// No answer in time.
    #[error("no answer from the database within {0:?}")]
    Late(Duration),
    /// The connection closed.
    #[error("the connection closed")]
    Closed,
    /// What the database said.
    #[error("{0}")]
    Sql(#[from] sqlx::Error),
}

#[derive(Debug)]
pub(super) struct Line {
    listener: PgListener,
    key: i64,
    channel: String,
    answered: Instant,
}

impl Line {
    /// Connects, listens, and proves that a notification reaches this session before anything is held by it.
    pub(super) async fn open(
        listening: &PgConnectOptions,
        notifying: &PgConnectOptions,
        schema: &SchemaName,
    ) -> Result<Self, Silent> {
        let connecting = async {
            // Of one connection, which the listener keeps; a lost one is never replaced behind our back.
            let pool = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None);
            let pool = pool.acquire_timeout(CONNECT_DEADLINE).connect_with(listening.clone()).await?;
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.ignore_pool_close_event(true);
            listener.eager_reconnect(false);
            Ok::<_, sqlx::Error>(listener)
        };
        let mut listener = within(CONNECT_DEADLINE, connecting).await?;
        let ready = sqlx::query_as(include_str!("../sql/doorbell_ready.sql")).persistent(false).bind(schema.as_str());
        let ready: Option<(i64, bool)> = within(ANSWER_DEADLINE, ready.fetch_optional(&mut listener)).await?;
        let Some((key, true)) = ready else {
            return Err(Silent::NoTrigger { schema: schema.quoted().to_owned() });
        };
        let channel = format!("outbox_{key}");
        let echo = format!("outbox_echo_{}", Uuid::now_v7().simple());
        within(ANSWER_DEADLINE, listener.listen_all([channel.as_str(), &echo])).await?;
        let sent = async {
            let mut other = notifying.connect().await?;
            notify(&mut other, &echo).await?;
            other.close().await
        };
        within(CONNECT_DEADLINE, sent).await?;
        let deadline = Instant::now() + ECHO_DEADLINE;
        loop {
            match timeout_at(deadline, listener.try_recv()).await {
                Ok(Ok(Some(heard))) if heard.channel() == echo => break,
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None)) => return Err(Silent::Closed),
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => return Err(Silent::NoEcho),
            }
        }
        within(ANSWER_DEADLINE, listener.unlisten(&echo)).await?;
        let settings = sqlx::raw_sql(include_str!("../sql/doorbell_session.sql"));
        within(ANSWER_DEADLINE, listener.execute(settings)).await?;
        Ok(Self { listener, key, channel, answered: Instant::now() })
    }

    /// Forgets what has rung so far, and then tries to get the key. Never waits for it.
    pub(super) async fn ask(&mut self) -> Result<Key, Silent> {
        while self.listener.next_buffered().is_some() {}
        let ask = sqlx::query_as(include_str!("../sql/doorbell_ask.sql")).persistent(false).bind(self.key);
        let (got,): (bool,) = within(ANSWER_DEADLINE, ask.fetch_one(&mut self.listener)).await?;
        self.answered = Instant::now();
        if got {
            return Ok(Key::Got);
        }
        let holder = sqlx::query_as(include_str!("../sql/doorbell_holder.sql")).persistent(false).bind(self.key);
        let (held,): (bool,) = within(ANSWER_DEADLINE, holder.fetch_one(&mut self.listener)).await?;
        Ok(if held { Key::Held } else { Key::Busy })
    }

    /// Gives the key back, and notifies whom it covered.
    pub(super) async fn give_back(&mut self) -> Result<(), Silent> {
        let back = sqlx::query(include_str!("../sql/doorbell_give_back.sql")).persistent(false);
        let back = back.bind(self.key).bind(&self.channel).execute(&mut self.listener);
        within(ANSWER_DEADLINE, back).await?;
        self.answered = Instant::now();
        Ok(())
    }

    /// A sign of life, if the last one is old.
    pub(super) async fn check(&mut self) -> Result<(), Silent> {
        if self.answered.elapsed() >= SIGN_OF_LIFE {
            within(ANSWER_DEADLINE, self.listener.execute(sqlx::raw_sql(""))).await?;
            self.answered = Instant::now();
        }
        Ok(())
    }

    /// Returns when somebody has rung.
    ///
    /// Cancel safe: what has arrived and is not returned is returned by the next call, or forgotten by
    /// [`Line::ask`].
    pub(super) async fn rung(&mut self) -> Result<(), Silent> {
        loop {
            match self.listener.try_recv().await {
                Ok(Some(heard)) if heard.channel() == self.channel => return Ok(()),
                Ok(Some(_)) => {}
                Ok(None) => return Err(Silent::Closed),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

async fn notify(connection: &mut PgConnection, channel: &str) -> Result<(), sqlx::Error> {
    let notify = sqlx::query(include_str!("../sql/doorbell_notify.sql")).persistent(false);
    notify.bind(channel).execute(connection).await.map(|_| ())
}

async fn within<T>(deadline: Duration, call: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Silent> {
    match timeout(deadline, call).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(Silent::Late(deadline)),
    }
}
