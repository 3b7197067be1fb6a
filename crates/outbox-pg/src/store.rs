//! The store that a relay works with: connections, and the statements with the schema's name in them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    Confirmed, EventId, Lane, Ownership, RetryState, Store, StoreError, StoreErrorKind, WriteBack, WriteBackStatus,
};
use sqlx::AssertSqlSafe;

use crate::config::{PgConfig, PgConfigError};
use crate::ownership::{self, OwnershipSql};
use crate::read::{PgLane, ReadSql};
use crate::session::{Begin, Sessions};
use crate::settle::{self, SettleSql};

/// The longest time to find out whether a lane may be opened.
const OPEN_DEADLINE: Duration = Duration::from_secs(10);

const HIDDEN_ROWS: &str = "row-level security hides events from the relay's role, so it would lose them; give the role \
                           BYPASSRLS or disable row-level security on the table events";

const CACHED_IDS: &str = "the sequence events_id_seq must hand out ids one by one, otherwise late ones would be passed \
                          over; run ALTER SEQUENCE … CACHE 1 INCREMENT 1 NO CYCLE";

/// The outbox of one PostgreSQL database, seen by one relay.
///
/// Connections are made when they are needed: the relay starts while the database is down. No statement is prepared
/// under a name and no session setting outlives its transaction, so a pooler in transaction mode may stand between.
#[derive(Debug)]
pub struct PgStore {
    sessions: Arc<Sessions>,
    relay_name: String,
    ownership: OwnershipSql,
    settle: SettleSql,
    begin: Begin,
    lane_ready: Arc<str>,
    read: Arc<ReadSql>,
}

impl PgStore {
    /// A store for the database of a config; `relay_name` is a label in the table `relays`.
    ///
    /// # Errors
    /// [`PgConfigError`] when a value can't be used. Nothing is connected yet.
    pub fn new(config: &PgConfig, relay_name: impl Into<String>) -> Result<Self, PgConfigError> {
        let options = config.connect_options()?;
        let max_connections = usize::try_from(config.max_connections).unwrap_or(usize::MAX);
        Ok(Self {
            sessions: Sessions::new(options, max_connections),
            relay_name: relay_name.into(),
            ownership: OwnershipSql::new(&config.schema),
            settle: SettleSql::new(&config.schema),
            begin: Begin::new(&config.schema),
            lane_ready: config.schema.sql(include_str!("sql/lane_ready.sql")),
            read: Arc::new(ReadSql::new(&config.schema)),
        })
    }

    /// Ends all idle connections in order. Calls made later connect again.
    pub async fn close(&self) {
        self.sessions.close().await;
    }
}

#[async_trait]
impl Store for PgStore {
    async fn acquire(&self, route: &str, lease: Duration) -> Result<Option<Ownership>, StoreError> {
        ownership::acquire(&self.sessions, &self.ownership, &self.relay_name, route, lease).await
    }

    async fn renew(&self, ownership: &Ownership) -> Result<bool, StoreError> {
        ownership::renew(&self.sessions, &self.ownership, ownership).await
    }

    async fn release(&self, ownership: &Ownership) -> Result<(), StoreError> {
        ownership::release(&self.sessions, &self.ownership, ownership).await
    }

    async fn open_lane(&self, _ownership: &Ownership) -> Result<Box<dyn Lane>, StoreError> {
        let ready = async {
            let mut session = self.sessions.open().await?;
            session.begin(&self.begin, OPEN_DEADLINE).await?;
            let ready: Option<(bool, bool)> = sqlx::query_as(AssertSqlSafe(&*self.lane_ready))
                .persistent(false)
                .fetch_optional(session.connection())
                .await?;
            session.commit().await?;
            let refuse = |why| Err(StoreError::new(StoreErrorKind::Unprepared, why).into());
            match ready {
                Some((false, true)) => Ok(()),
                Some((true, _)) => refuse(HIDDEN_ROWS),
                Some((false, false)) => refuse(CACHED_IDS),
                None => refuse("the sequence events_id_seq is missing; run `outbox-relay migrate up`"),
            }
        };
        self.sessions.within("opening a lane", OPEN_DEADLINE, ready).await?;
        Ok(Box::new(PgLane::new(Arc::clone(&self.sessions), Arc::clone(&self.read))))
    }

    async fn settle(&self, confirmed: &[Confirmed]) -> Result<(), StoreError> {
        settle::settle(&self.sessions, &self.settle, confirmed).await
    }

    async fn write_back(
        &self,
        ownership: &Ownership,
        changes: &[WriteBack],
    ) -> Result<Vec<WriteBackStatus>, StoreError> {
        settle::write_back(&self.sessions, &self.settle, ownership, changes).await
    }

    async fn retry_states(&self, waiting: &[(i64, EventId)]) -> Result<Vec<RetryState>, StoreError> {
        settle::retry_states(&self.sessions, &self.settle, waiting).await
    }
}
