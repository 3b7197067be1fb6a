//! The store with one part of the design left out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox_core::{
    Acquisition, Buckets, Claimed, Confirmed, EventId, Lane, Ownership, ReadBatch, ReadRequest, Renewal, RetryState,
    Routes, Selection, Store, StoreError, SweepPage, WriteBack, WriteBackStatus,
};
use outbox_pg::{PgConfig, PgStore};
use sqlx::{Connection as _, PgConnection};
use tokio::sync::watch;

/// What is left out, or done in another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    /// Nothing is: the same scenes, in which everything must hold.
    None,
    /// A cursor without a look-back.
    NoLookBack,
    /// What the look-back finds is handed on by a timer, and not with the read that found it.
    LookBackByTimer,
    /// What the look-back finds comes from the snapshot of another read.
    OtherSnapshot,
    /// A lane that gains buckets goes on from where it is.
    NoCatchUp,
    /// A write-back carries whatever token is valid.
    NoFencing,
    /// What is confirmed is deleted by its id alone.
    SettlesById,
}

/// How long a look-back by timer waits.
const TIMER: Duration = Duration::from_millis(700);

/// Lets calls through while it is open.
#[derive(Debug, Clone)]
pub(super) struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    pub(super) fn open() -> Self {
        Self(Arc::new(watch::Sender::new(true)))
    }

    pub(super) fn set_open(&self, open: bool) {
        self.0.send_replace(open);
    }

    pub(super) async fn pass(&self) {
        // The sender lives as long as the gate.
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}

#[derive(Debug)]
pub(super) struct Planted {
    inner: PgStore,
    url: String,
    bug: Bug,
    /// Before each read, each settle, each write-back and each renewal.
    pub(super) reads: Gate,
    pub(super) settles: Gate,
    pub(super) write_backs: Gate,
    pub(super) renewals: Gate,
}

impl Planted {
    pub(super) fn new(url: &str, bug: Bug) -> Arc<Self> {
        let inner = PgStore::new(&PgConfig::new(url), "planted").unwrap();
        let (reads, settles) = (Gate::open(), Gate::open());
        let (write_backs, renewals) = (Gate::open(), Gate::open());
        Arc::new(Self { inner, url: url.to_owned(), bug, reads, settles, write_backs, renewals })
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    fn lane(&self, inner: Box<dyn Lane>) -> Box<dyn Lane> {
        Box::new(PlantedLane { inner, bug: self.bug, reads: self.reads.clone(), held: Vec::new() })
    }
}

#[async_trait]
impl Store for Planted {
    async fn acquire(&self, route: &Selection, lease: Duration) -> Result<Acquisition, StoreError> {
        self.inner.acquire(route, lease).await
    }

    async fn take_more(&self, ownership: &Ownership) -> Result<Acquisition, StoreError> {
        self.inner.take_more(ownership).await
    }

    async fn give_back(&self, ownership: &Ownership, buckets: Buckets) -> Result<(), StoreError> {
        self.inner.give_back(ownership, buckets).await
    }

    async fn renew(&self, ownership: &Ownership) -> Result<Renewal, StoreError> {
        self.renewals.pass().await;
        self.inner.renew(ownership).await
    }

    async fn release(&self, ownership: &Ownership) -> Result<(), StoreError> {
        self.inner.release(ownership).await
    }

    async fn forget_deaths(&self, ownership: &Ownership, buckets: Buckets) -> Result<(), StoreError> {
        self.inner.forget_deaths(ownership, buckets).await
    }

    async fn open_lane(&self, ownership: &Ownership) -> Result<Box<dyn Lane>, StoreError> {
        Ok(self.lane(self.inner.open_lane(ownership).await?))
    }

    async fn open_unrouted_lane(&self, routes: &Routes) -> Result<Box<dyn Lane>, StoreError> {
        self.inner.open_unrouted_lane(routes).await
    }

    async fn settle(&self, route: &str, confirmed: &[Confirmed]) -> Result<(), StoreError> {
        self.settles.pass().await;
        if self.bug == Bug::SettlesById {
            let ids: Vec<i64> = confirmed.iter().map(|event| event.id).collect();
            let delete = sqlx::query("DELETE FROM outbox.events WHERE id = ANY ($1)").bind(ids);
            delete.execute(&mut self.connect().await).await.unwrap();
            return Ok(());
        }
        self.inner.settle(route, confirmed).await
    }

    async fn write_back(
        &self,
        ownership: &Ownership,
        changes: &[WriteBack],
    ) -> Result<Vec<WriteBackStatus>, StoreError> {
        self.write_backs.pass().await;
        let mut ownership = ownership.clone();
        if self.bug == Bug::NoFencing {
            let valid: Vec<(i16, i64)> = sqlx::query_as("SELECT bucket, token FROM outbox.buckets WHERE route = $1")
                .bind(ownership.route())
                .fetch_all(&mut self.connect().await)
                .await
                .unwrap();
            ownership.tokens =
                valid.into_iter().map(|(bucket, token)| (u16::try_from(bucket).unwrap(), token)).collect();
        }
        self.inner.write_back(&ownership, changes).await
    }

    async fn retry_states(&self, route: &str, waiting: &[(i64, EventId)]) -> Result<Vec<RetryState>, StoreError> {
        self.inner.retry_states(route, waiting).await
    }
}

#[derive(Debug)]
struct PlantedLane {
    inner: Box<dyn Lane>,
    bug: Bug,
    reads: Gate,
    /// What the look-back has found and what is handed on later.
    held: Vec<(Instant, Claimed)>,
}

#[async_trait]
impl Lane for PlantedLane {
    async fn read(&mut self, request: ReadRequest) -> Result<ReadBatch, StoreError> {
        self.reads.pass().await;
        let mut batch = self.inner.read(request).await?;
        // The look-back's events come first: they lie below the cursor.
        let late: Vec<Claimed> = match self.bug {
            Bug::NoLookBack | Bug::LookBackByTimer | Bug::OtherSnapshot => batch.events.drain(..batch.late).collect(),
            _ => return Ok(batch),
        };
        batch.late = 0;
        let ripe = match self.bug {
            Bug::NoLookBack => return Ok(batch),
            Bug::LookBackByTimer => TIMER,
            _ => Duration::ZERO,
        };
        let (due, held) = std::mem::take(&mut self.held).into_iter().partition(|(since, _)| since.elapsed() >= ripe);
        self.held = held;
        batch.events.extend(due.into_iter().map(|(_, event): (Instant, Claimed)| event));
        self.held.extend(late.into_iter().map(|event| (Instant::now(), event)));
        Ok(batch)
    }

    async fn sweep(&mut self, after: i64) -> Result<SweepPage, StoreError> {
        self.inner.sweep(after).await
    }

    fn turn_to(&mut self, buckets: Buckets, gained: Buckets) {
        let gained = if self.bug == Bug::NoCatchUp { Buckets::NONE } else { gained };
        self.inner.turn_to(buckets, gained);
    }
}
