//! The store that a relay works with: connections, and the statements with the schema's name in them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    Acquisition, Buckets, Confirmed, EventId, Lane, Ownership, Renewal, RetryState, Routes, Selection, Store,
    StoreError, StoreErrorKind, WriteBack, WriteBackStatus,
};
use sqlx::AssertSqlSafe;

use crate::config::{PgConfig, PgConfigError, default_connections, least_connections};
use crate::matching::Matching;
use crate::ownership::{self, OwnershipSql};
use crate::read::{PgLane, ReadSql};
use crate::session::{Begin, Pool, Sessions};
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
    pool: Arc<Pool>,
    config: PgConfig,
    /// Each route's own connections, shared out when they are first needed.
    sessions: Mutex<HashMap<String, Arc<Sessions>>>,
    /// That of the reader that belongs to no route.
    unrouted: Arc<Sessions>,
    is_shared_out: AtomicBool,
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
        let pool = Pool::new(options);
        Ok(Self {
            unrouted: Sessions::of_reader(&pool),
            pool,
            config: config.clone(),
            sessions: Mutex::default(),
            is_shared_out: AtomicBool::new(false),
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
        self.pool.close().await;
    }

    /// The connections of a route.
    fn sessions(&self, route: &str) -> Arc<Sessions> {
        // A panic while the map was locked leaves a map all the same.
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = sessions.get(route) {
            return Arc::clone(known);
        }
        Arc::clone(sessions.entry(route.to_owned()).or_insert_with(|| Sessions::of_route(&self.pool)))
    }

    /// Shares out the connections among these routes, once: the first to be acquired says how many there are.
    fn share_out(&self, routes: &Routes) -> Result<(), StoreError> {
        let wrong = |error: PgConfigError| StoreError::new(StoreErrorKind::Unprepared, error.to_string());
        self.config.check_routes(routes).map_err(wrong)?;
        if !self.is_shared_out.swap(true, Ordering::Relaxed) {
            let most = self.config.max_connections.unwrap_or_else(|| default_connections(routes));
            self.pool.share(most.saturating_sub(least_connections(routes)));
        }
        Ok(())
    }

    async fn lane(
        &self,
        sessions: Arc<Sessions>,
        matching: Matching,
        buckets: Buckets,
    ) -> Result<Box<dyn Lane>, StoreError> {
        let ready = async {
            let mut session = sessions.open().await?;
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
        sessions.within("opening a lane", OPEN_DEADLINE, ready).await?;
        Ok(Box::new(PgLane::new(sessions, Arc::clone(&self.read), matching, buckets)))
    }
}

#[async_trait]
impl Store for PgStore {
    async fn acquire(&self, route: &Selection, lease: Duration) -> Result<Acquisition, StoreError> {
        self.share_out(route.routes())?;
        let sessions = self.sessions(route.name());
        ownership::acquire(&sessions, &self.ownership, &self.relay_name, route, lease).await
    }

    async fn take_more(&self, ownership: &Ownership) -> Result<Acquisition, StoreError> {
        ownership::take_more(&self.sessions(ownership.route()), &self.ownership, ownership).await
    }

    async fn give_back(&self, ownership: &Ownership, buckets: Buckets) -> Result<(), StoreError> {
        ownership::give_back(&self.sessions(ownership.route()), &self.ownership, ownership, buckets).await
    }

    async fn renew(&self, ownership: &Ownership) -> Result<Renewal, StoreError> {
        ownership::renew(&self.sessions(ownership.route()), &self.ownership, ownership).await
    }

    async fn release(&self, ownership: &Ownership) -> Result<(), StoreError> {
        ownership::release(&self.sessions(ownership.route()), &self.ownership, ownership).await
    }

    async fn open_lane(&self, ownership: &Ownership) -> Result<Box<dyn Lane>, StoreError> {
        let sessions = self.sessions(ownership.route());
        self.lane(sessions, Matching::of(&ownership.selection), ownership.buckets()).await
    }

    async fn open_unrouted_lane(&self, routes: &Routes) -> Result<Box<dyn Lane>, StoreError> {
        self.lane(Arc::clone(&self.unrouted), Matching::left_over(routes), Buckets::ALL).await
    }

    async fn settle(&self, route: &str, confirmed: &[Confirmed]) -> Result<(), StoreError> {
        settle::settle(&self.sessions(route), &self.settle, confirmed).await
    }

    async fn write_back(
        &self,
        ownership: &Ownership,
        changes: &[WriteBack],
    ) -> Result<Vec<WriteBackStatus>, StoreError> {
        settle::write_back(&self.sessions(ownership.route()), &self.settle, ownership, changes).await
    }

    async fn forget_deaths(&self, ownership: &Ownership, buckets: Buckets) -> Result<(), StoreError> {
        ownership::forget_deaths(&self.sessions(ownership.route()), &self.ownership, ownership, buckets).await
    }

    async fn retry_states(&self, route: &str, waiting: &[(i64, EventId)]) -> Result<Vec<RetryState>, StoreError> {
        settle::retry_states(&self.sessions(route), &self.settle, waiting).await
    }
}
