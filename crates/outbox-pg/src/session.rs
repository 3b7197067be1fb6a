//! Connections of a relay: each call has a deadline, and a connection that was in doubt is never used again.
//!
//! A pool would hide why a connection could not be made, and would take back one whose transaction was cut off in the
//! middle. Here a call owns its connection: it goes back only when the call has ended well.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbox_core::{StoreError, StoreErrorKind};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::store_error;
use crate::schema::SchemaName;

/// The longest time to make a connection, login included.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// The connections of one store.
#[derive(Debug)]
pub(crate) struct Sessions {
    options: PgConnectOptions,
    idle: Mutex<Vec<PgConnection>>,
    permits: Semaphore,
    ownership: Semaphore,
}

/// What a call is for, which decides for whom it may have to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Reads, settles, write-backs: they share all connections but one.
    Work,
    /// Leases: one connection is theirs alone, since a renewal that waits behind slow work loses the route.
    Ownership,
}

/// The start of a transaction whose statements the server itself ends in time. A call that is only given up here leaves
/// a backend behind for as long as it waits for a lock: called again and again, they would fill the server.
#[derive(Debug)]
pub(crate) struct Begin(Arc<str>);

impl Begin {
    pub(crate) fn new(schema: &SchemaName) -> Self {
        Self(schema.sql(include_str!("sql/begin_write.sql")))
    }

    fn sql(&self, limit: Duration) -> String {
        // Zero would mean no limit.
        self.0.replace("{limit_ms}", &limit.as_millis().max(1).to_string())
    }
}

/// What went wrong inside a call.
#[derive(Debug)]
pub(crate) enum CallError {
    Sql(sqlx::Error),
    Store(StoreError),
}

impl From<sqlx::Error> for CallError {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for CallError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Sessions {
    pub(crate) fn new(options: PgConnectOptions, max_connections: usize) -> Arc<Self> {
        let permits = Semaphore::new(max_connections.saturating_sub(1).max(1));
        Arc::new(Self { options, idle: Mutex::new(Vec::new()), permits, ownership: Semaphore::new(1) })
    }

    /// Bounds a call in time and gives its errors their meaning. `doing` names it in errors.
    pub(crate) async fn within<T>(
        &self,
        doing: &'static str,
        deadline: Duration,
        call: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, StoreError> {
        let error = match tokio::time::timeout(deadline, call).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(CallError::Sql(error))) => store_error(doing, error),
            Ok(Err(CallError::Store(error))) => error,
            Err(_) => unavailable(format!("{doing}: no answer from the database within {deadline:?}")),
        };
        if error.kind() == StoreErrorKind::Unavailable {
            // The other connections were made to the same server and are likely to be as dead.
            self.lock().clear();
        }
        Err(error)
    }

    /// A connection for one call.
    ///
    /// Cancel safe: when the session is dropped before [`Session::keep`], so is the connection, and the server rolls
    /// back what was open on it.
    pub(crate) async fn open(&self) -> Result<Session<'_>, CallError> {
        self.open_for(Purpose::Work).await
    }

    /// As [`Sessions::open`], for a purpose.
    pub(crate) async fn open_for(&self, purpose: Purpose) -> Result<Session<'_>, CallError> {
        let closed = |_| unavailable("the store is closed".to_owned());
        let permits = match purpose {
            Purpose::Work => &self.permits,
            Purpose::Ownership => &self.ownership,
        };
        let permit = permits.acquire().await.map_err(closed)?;
        let idle = self.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => tokio::time::timeout(CONNECT_DEADLINE, self.options.connect())
                .await
                .map_err(|_| unavailable(format!("no connection to the database within {CONNECT_DEADLINE:?}")))?
                .map_err(|error| store_error("connecting to the database", error))?,
        };
        Ok(Session { connection, sessions: self, _permit: permit })
    }

    /// Says goodbye to the server on all idle connections.
    pub(crate) async fn close(&self) {
        let idle = std::mem::take(&mut *self.lock());
        for connection in idle {
            // The server notices the closed socket if the goodbye does not arrive.
            if let Err(error) = connection.close().await {
                tracing::debug!(%error, "a database connection did not close in order");
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<PgConnection>> {
        // A panic while the list was locked leaves a list of connections all the same.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that one call owns.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    connection: PgConnection,
    sessions: &'a Sessions,
    _permit: SemaphorePermit<'a>,
}

impl Session<'_> {
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// Begins a transaction in which the server ends each statement after `limit`.
    pub(crate) async fn begin(&mut self, begin: &Begin, limit: Duration) -> Result<(), CallError> {
        self.connection.execute(sqlx::raw_sql(AssertSqlSafe(begin.sql(limit)))).await?;
        Ok(())
    }

    /// Commits, and gives the connection back.
    pub(crate) async fn commit(mut self) -> Result<(), CallError> {
        self.connection.execute(sqlx::raw_sql("COMMIT")).await?;
        self.keep();
        Ok(())
    }

    /// Rolls back, and gives the connection back.
    pub(crate) async fn roll_back(mut self) -> Result<(), CallError> {
        self.connection.execute(sqlx::raw_sql("ROLLBACK")).await?;
        self.keep();
        Ok(())
    }

    /// The call has ended well and left nothing open: the connection may serve another.
    pub(crate) fn keep(self) {
        self.sessions.lock().push(self.connection);
    }
}

fn unavailable(detail: String) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, detail)
}
