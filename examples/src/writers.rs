//! A load of concurrent writers that would show a lost event or a broken order.
//!
//! Each transaction stays open for a while after its event was written, so that places in the order are taken and
//! committed in different orders; some are rolled back, a few stay open for seconds.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fastrand::Rng;
use outbox_core::EventId;
use outbox_pg::Outbox;
use sqlx::PgPool;
use tokio::task::JoinSet;

use crate::orders::{OrderError, add_item};

/// How many transactions in a hundred are rolled back.
const ROLLED_BACK_PERCENT: u8 = 5;

/// How many transactions in a hundred stay open for [`LONG_PAUSE_MS`].
const LONG_PERCENT: u8 = 1;

/// How long a transaction stays open after its event was written.
const PAUSE_MS: Range<u64> = 0..21;

/// The same for the few long ones.
const LONG_PAUSE_MS: Range<u64> = 1000..2000;

/// What the writers are to do.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Events to commit, over all writers.
    pub events: usize,
    /// Writers, each with a connection of its own.
    pub writers: usize,
    /// Orders that they write to. Few: the writers wait for each other.
    pub orders: i64,
    /// Fixes what each writer does in turn. How the writers interleave is left to the machine.
    pub seed: u64,
}

/// An event whose transaction was committed.
#[derive(Debug, Clone, Copy)]
pub struct Committed {
    /// The event.
    pub event: EventId,
    /// Its order.
    pub order: i64,
    /// The order's version with this event: its place among the order's events.
    pub version: i64,
    /// When the writer began the transaction.
    pub began_at: Instant,
    /// When the writer knew that it was committed.
    pub committed_at: Instant,
}

/// What writers did.
#[derive(Debug, Default)]
pub struct Journal {
    /// The committed events.
    pub committed: Vec<Committed>,
    /// The events whose transactions were rolled back.
    pub rolled_back: Vec<EventId>,
}

/// Runs all writers to their end; `committed` counts along.
///
/// # Errors
/// The first failure of a writer; the others are stopped.
///
/// # Cancel safety
/// Dropped, the writers are stopped. Use the pool for nothing else then: it may hold open transactions.
pub async fn run(pool: PgPool, load: Load, committed: Arc<AtomicUsize>) -> Result<Journal, OrderError> {
    // Taken one by one: a writer that pauses for seconds leaves its share to the others.
    let to_do = Arc::new(AtomicUsize::new(load.events));
    let mut writers = JoinSet::new();
    for number in 0..load.writers {
        let seed = load.seed.wrapping_mul(1_000_003).wrapping_add(number as u64);
        let rng = Rng::with_seed(seed);
        writers.spawn(write(pool.clone(), rng, load.orders, Arc::clone(&to_do), Arc::clone(&committed)));
    }
    let mut all = Journal::default();
    while let Some(ended) = writers.join_next().await {
        let journal = match ended {
            Ok(journal) => journal?,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_cancelled) => continue, // nobody cancels one writer alone
        };
        all.committed.extend(journal.committed);
        all.rolled_back.extend(journal.rolled_back);
    }
    Ok(all)
}

async fn write(
    pool: PgPool,
    mut rng: Rng,
    orders: i64,
    to_do: Arc<AtomicUsize>,
    committed: Arc<AtomicUsize>,
) -> Result<Journal, OrderError> {
    let outbox = Outbox::default();
    let mut journal = Journal::default();
    let take = || to_do.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
    let mut has_one = take();
    while has_one {
        let order = rng.i64(0..orders);
        let cents = rng.i64(1..10_000);
        let is_long = rng.u8(0..100) < LONG_PERCENT;
        let pause = rng.u64(if is_long { LONG_PAUSE_MS } else { PAUSE_MS });
        let keep = rng.u8(0..100) >= ROLLED_BACK_PERCENT;

        let began_at = Instant::now();
        let mut tx = pool.begin().await?;
        let (event, added) = add_item(&mut tx, &outbox, order, cents).await?;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        if keep {
            tx.commit().await?;
            let committed_at = Instant::now();
            journal.committed.push(Committed { event, order, version: added.version, began_at, committed_at });
            committed.fetch_add(1, Relaxed);
            has_one = take();
        } else {
            tx.rollback().await?;
            journal.rolled_back.push(event);
        }
    }
    Ok(journal)
}
