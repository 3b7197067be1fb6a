//! A store that refuses one row, or answers for fewer than it was asked about.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    Acquisition, Buckets, Confirmed, ErrorKind, EventId, Lane, Ownership, Renewal, RetryState, Routes, Selection,
    Store, StoreError, StoreErrorKind, WriteBack, WriteBackStatus,
};
use outbox_relay::Route;
use outbox_testkit::memory::{MemoryPublisher, MemoryStore, Scripted};
use tokio_util::sync::CancellationToken;

use crate::rig::{SECOND, config, elapse, insert};

/// Says of each write-back whether the table takes it.
type Takes = Box<dyn Fn(&WriteBack) -> bool + Send + Sync>;

/// The memory store behind a table that refuses what the test names, whole statements at a time.
struct Picky {
    store: MemoryStore,
    takes: Mutex<Takes>,
    statements: Mutex<Vec<Vec<i64>>>,
    /// Answers are cut to this many.
    answers: usize,
}

impl std::fmt::Debug for Picky {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Picky").finish_non_exhaustive()
    }
}

impl Picky {
    fn new(store: &MemoryStore, takes: impl Fn(&WriteBack) -> bool + Send + Sync + 'static) -> Self {
        let takes = Mutex::new(Box::new(takes) as Takes);
        Self { store: store.clone(), takes, statements: Mutex::default(), answers: usize::MAX }
    }
}

#[async_trait]
impl Store for Picky {
    async fn acquire(&self, route: &Selection, lease: Duration) -> Result<Acquisition, StoreError> {
        self.store.acquire(route, lease).await
    }

    async fn take_more(&self, ownership: &Ownership) -> Result<Acquisition, StoreError> {
        self.store.take_more(ownership).await
    }

    async fn give_back(&self, ownership: &Ownership, buckets: Buckets) -> Result<(), StoreError> {
        self.store.give_back(ownership, buckets).await
    }

    async fn renew(&self, ownership: &Ownership) -> Result<Renewal, StoreError> {
        self.store.renew(ownership).await
    }

    async fn release(&self, ownership: &Ownership) -> Result<(), StoreError> {
        self.store.release(ownership).await
    }

    async fn open_lane(&self, ownership: &Ownership) -> Result<Box<dyn Lane>, StoreError> {
        self.store.open_lane(ownership).await
    }

    async fn open_unrouted_lane(&self, routes: &Routes) -> Result<Box<dyn Lane>, StoreError> {
        self.store.open_unrouted_lane(routes).await
    }

    async fn settle(&self, route: &str, confirmed: &[Confirmed]) -> Result<(), StoreError> {
        self.store.settle(route, confirmed).await
    }

    async fn write_back(
        &self,
        ownership: &Ownership,
        changes: &[WriteBack],
    ) -> Result<Vec<WriteBackStatus>, StoreError> {
        self.statements.lock().expect("no panic under it").push(changes.iter().map(|change| change.id).collect());
        if !changes.iter().all(|change| (self.takes.lock().expect("no panic under it"))(change)) {
            return Err(StoreError::new(StoreErrorKind::Failed, "the table refuses it"));
        }
        let mut statuses = self.store.write_back(ownership, changes).await?;
        statuses.truncate(self.answers);
        Ok(statuses)
    }

    async fn forget_deaths(&self, ownership: &Ownership, buckets: Buckets) -> Result<(), StoreError> {
        self.store.forget_deaths(ownership, buckets).await
    }

    async fn retry_states(&self, route: &str, waiting: &[(i64, EventId)]) -> Result<Vec<RetryState>, StoreError> {
        let mut states = self.store.retry_states(route, waiting).await?;
        states.truncate(self.answers);
        Ok(states)
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_that_cannot_be_written_waits_alone() {
    let store = MemoryStore::new();
    let picky = Arc::new(Picky::new(&store, |change| change.id != 300));
    let publisher = Arc::new(MemoryPublisher::new().with_script(|_, _| Scripted::fail(ErrorKind::Rejected)));
    insert(&store, 1..=500);
    let route = Route::new(config(), Arc::<Picky>::clone(&picky), Arc::<MemoryPublisher>::clone(&publisher)).unwrap();
    let (health, shutdown) = (route.health(), CancellationToken::new());
    let task = tokio::spawn(route.run(shutdown.clone()));
    store.wait_until(|view| view.dead_letters().len() == 499).await;
    elapse(SECOND).await;
    assert_eq!(health.status().not_ready(), None, "one row is no outage");
    assert_eq!(health.gauges().refused_write_backs.load(Relaxed), 1);
    let statements = picky.statements.lock().unwrap().len();
    assert!(statements < 60, "{statements} statements for one bad row of 500");

    // It does not hold up what comes later, and is tried again ever more rarely.
    insert(&store, ["later"]);
    store.wait_until(|view| view.dead_letters().len() == 500).await;
    let before = picky.statements.lock().unwrap().len();
    elapse(600 * SECOND).await;
    let tries = picky.statements.lock().unwrap().len() - before;
    assert!((5..60).contains(&tries), "{tries} tries in ten minutes");
    *picky.takes.lock().unwrap() = Box::new(|_| true);
    store.wait_until(|view| view.dead_letters().len() == 501).await;
    assert_eq!(store.view(|view| view.pending()), 0);
    shutdown.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reason_that_cannot_be_written_gives_way_to_a_plain_one() {
    let store = MemoryStore::new();
    let picky = Arc::new(Picky::new(&store, |change| !change.error.contains("as the test says")));
    let publisher = Arc::new(MemoryPublisher::new().with_script(|event, nth| match (event.id, nth) {
        (1, _) => Scripted::fail(ErrorKind::Rejected),
        (2, 1) => Scripted::fail(ErrorKind::Failed),
        _ => Scripted::Confirm,
    }));
    insert(&store, ["a", "b", "c"]);
    let route = Route::new(config(), picky, Arc::<MemoryPublisher>::clone(&publisher)).unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(route.run(shutdown.clone()));
    store.wait_until(|view| view.pending() == 0).await;
    assert_eq!(publisher.delivered_ids(), [3, 2]);
    store.view(|view| {
        assert_eq!(view.dead_letters().len(), 1);
        let letter = &view.dead_letters()[0];
        assert!(letter.kind == "rejected" && letter.reason.is_ascii() && letter.reason.len() < 100, "{letter:?}");
    });
    shutdown.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_row_that_cannot_be_written() {
    let store = MemoryStore::new();
    let picky = Arc::new(Picky::new(&store, |_| false));
    let publisher = Arc::new(MemoryPublisher::new().with_script(|_, _| Scripted::fail(ErrorKind::Rejected)));
    insert(&store, ["a"]);
    let route = Route::new(config(), Arc::<Picky>::clone(&picky), publisher).unwrap();
    let (health, shutdown) = (route.health(), CancellationToken::new());
    let task = tokio::spawn(route.run(shutdown.clone()));
    elapse(5 * SECOND).await;
    assert_eq!(health.gauges().refused_write_backs.load(Relaxed), 1);
    let asked = tokio::time::Instant::now();
    shutdown.cancel();
    task.await.unwrap().unwrap();
    assert!(asked.elapsed() < 2 * SECOND, "{:?}", asked.elapsed());
    assert_eq!(store.view(|view| view.pending()), 1, "the next relay sends it");
}

// An answer that is too short must not drop events from memory: they would never be sent again.
#[tokio::test(start_paused = true)]
async fn a_store_that_answers_for_fewer_events_loses_none() {
    let store = MemoryStore::new();
    let mut picky = Picky::new(&store, |_| true);
    picky.answers = 1;
    let picky = Arc::new(picky);
    let publisher = Arc::new(MemoryPublisher::new().with_script(|_, nth| match nth {
        1 => Scripted::fail(ErrorKind::Failed),
        _ => Scripted::Confirm,
    }));
    insert(&store, 0..10);
    let mut config = config();
    (config.retry_initial, config.retry_max) = (10 * SECOND, 10 * SECOND);
    let route = Route::new(config, Arc::<Picky>::clone(&picky), Arc::<MemoryPublisher>::clone(&publisher)).unwrap();
    let (health, shutdown) = (route.health(), CancellationToken::new());
    let task = tokio::spawn(route.run(shutdown.clone()));
    elapse(5 * SECOND).await;
    let told = health.status().not_ready().unwrap_or_default();
    assert!(told.contains("1 answers about"), "retry states that are too few are told: {told}");
    store.wait_until(|view| view.pending() == 0).await;
    assert_eq!(publisher.view(|view| (view.delivered().len(), view.copies())), (10, 0));
    assert!(picky.statements.lock().unwrap().iter().any(|ids| ids.len() > 1));
    shutdown.cancel();
    task.await.unwrap().unwrap();
}
