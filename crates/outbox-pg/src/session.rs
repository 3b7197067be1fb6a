//! Connections of a relay: each call has a deadline, and a connection that was in doubt is never used again.
//!
//! A pool would hide why a connection could not be made, and would take back one whose transaction was cut off in the
//! middle. Here a call owns its connection: it goes back only when the call has ended well.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbox_core::{StoreError, StoreErrorKind};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::store_error;
use crate::schema::SchemaName;

/// The longest time to make a connection, login included.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// Connections that a route has for its reads, settles and write-backs alone, so that another route whose calls hang
/// costs it nothing. With one, reads and settles would wait for each other.
const OWN: u32 = 2;

/// Connections that each route has for itself: those, and one for its lease.
pub(crate) const PER_ROUTE: u32 = OWN + 1;

/// Connections beyond those of the routes, when nothing is said: what a busy route can use, looking at what waits and
/// writing back failures beside reads and settles.
pub(crate) const SHARED: u32 = 2;

/// The connections of one store, and those of them that no route has for itself.
#[derive(Debug)]
pub(crate) struct Pool {
    options: PgConnectOptions,
    idle: Mutex<Vec<PgConnection>>,
    shared: Semaphore,
}

impl Pool {
    pub(crate) fn new(options: PgConnectOptions) -> Arc<Self> {
        Arc::new(Self { options, idle: Mutex::default(), shared: Semaphore::new(0) })
    }

    /// Lets so many more connections be opened, by whoever needs one.
    pub(crate) fn share(&self, connections: u32) {
        self.shared.add_permits(usize::try_from(connections).unwrap_or(0));
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

/// What one route may open of a pool.
#[derive(Debug)]
pub(crate) struct Sessions {
    pool: Arc<Pool>,
    own: Semaphore,
    ownership: Semaphore,
}

/// What a call is for, which decides for whom it may have to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Reads, settles, write-backs.
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
    /// Those of a route.
    pub(crate) fn of_route(pool: &Arc<Pool>) -> Arc<Self> {
        Self::with(pool, OWN)
    }

    /// Those of a reader that belongs to no route: one.
    pub(crate) fn of_reader(pool: &Arc<Pool>) -> Arc<Self> {
        Self::with(pool, 1)
    }

    fn with(pool: &Arc<Pool>, own: u32) -> Arc<Self> {
        let own = Semaphore::new(usize::try_from(own).unwrap_or(1));
        Arc::new(Self { pool: Arc::clone(pool), own, ownership: Semaphore::new(1) })
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
            self.pool.lock().clear();
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
        let permit = match purpose {
            Purpose::Ownership => self.ownership.acquire().await,
            // Its own first: whoever has none left may need what is shared.
            Purpose::Work => tokio::select! {
                biased;
                own = self.own.acquire() => own,
                shared = self.pool.shared.acquire() => shared,
            },
        };
        let permit = permit.map_err(closed)?;
        let idle = self.pool.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => tokio::time::timeout(CONNECT_DEADLINE, self.connect())
                .await
                .map_err(|_| unavailable(format!("no connection to the database within {CONNECT_DEADLINE:?}")))??,
        };
        Ok(Session { connection, sessions: self, _permit: permit })
    }

    /// A new connection, to a primary: where an address leads to a replica for a while, also what only reads would be
    /// told of a past in which events are missing. A primary does not become a replica while its sessions live.
    async fn connect(&self) -> Result<PgConnection, CallError> {
        let wrong = |error| store_error("connecting to the database", error);
        let mut connection = self.pool.options.connect().await.map_err(wrong)?;
        let row = connection.fetch_one(sqlx::raw_sql(include_str!("sql/is_replica.sql"))).await.map_err(wrong)?;
        if row.try_get(0)? { Err(replica().into()) } else { Ok(connection) }
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
        self.sessions.pool.lock().push(self.connection);
    }
}

/// What a replica says of events, locks and retries may be long past. It heals by a promotion, or by an address that
/// leads to the primary again.
pub(crate) fn replica() -> StoreError {
    unavailable("the server is a replica; a relay needs the primary".to_owned())
}

fn unavailable(detail: String) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, detail)
}
