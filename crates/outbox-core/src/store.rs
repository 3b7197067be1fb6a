//! The contract between a relay and the database that holds the outbox.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Acquisition, Buckets, Envelope, EventId, Ownership, Renewal, Routes, Selection};

/// An event as it was read, with what the relay must know to keep its promises.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// The event.
    pub envelope: Envelope,
    /// The ordering key: equal for equal (aggregate type, aggregate id). Computed by the store as a hash, so two
    /// aggregates may share one; they are then ordered against each other, which is harmless.
    pub key: u64,
    /// The bucket, for fencing.
    pub bucket: u16,
    /// Present when the event has failed before.
    pub retrying: Option<Retrying>,
    /// Why the row can't be published as it stands, for example headers that are no flat object of strings.
    /// The envelope holds what could be read; the event becomes a dead letter.
    pub defect: Option<String>,
}

/// What earlier attempts left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retrying {
    /// Charged attempts so far.
    pub attempts: u32,
    /// How many relays in a row may have died of it: each wrote one more before it sent the event, and none lived to
    /// take it back.
    pub crashes: u32,
    /// It waits for an operator, whatever `due_in` says.
    pub blocked: bool,
    /// Time until the next attempt may be made, by the database's clock at the read; zero when it is due.
    pub due_in: Duration,
}

/// Which events a read wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadScope {
    /// The lowest unknown ids: new events above the cursor, and late ones that became visible below it.
    Forward,
    /// Unknown events of these ordering keys with `after < id <= through`: what was dropped for want of room.
    Keys {
        /// Ordering keys as in [`Claimed::key`].
        keys: Vec<u64>,
        /// Read above this id.
        after: i64,
        /// Read up to and with this id.
        through: i64,
    },
}

/// One read of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRequest {
    /// Which events.
    pub scope: ReadScope,
    /// At most this many events, at least 1.
    pub max_events: usize,
    /// Stop before the event that would exceed this many bytes, or after it at the latest; the first event always
    /// passes.
    pub max_bytes: usize,
    /// Ids whose deletion had committed before this request was made, and those whose bucket was given back: the lane may
    /// forget them.
    pub forget: Vec<i64>,
    /// Ids that the relay dropped for want of room. A forward read does not return them again as long as it could
    /// come across them; a read of [`ReadScope::Keys`] does, and the lane knows them again from then on.
    pub dropped: Vec<i64>,
}

/// What a read found.
#[derive(Debug, Clone, Default)]
pub struct ReadBatch {
    /// In id order. The lane knows these ids from now on and does not return them again until told to forget.
    pub events: Vec<Claimed>,
    /// The read ended because nothing more was there, not because of a limit: of rows, of bytes, or of ids that it looks
    /// at among other routes' events.
    pub complete: bool,
    /// Every matching id up to this one was looked at. For [`ReadScope::Keys`] it is below `through` when a limit ended
    /// the read; the relay goes on from here. For [`ReadScope::Forward`] it is the cursor: only the look-back reads below
    /// it, and a [`complete`](Self::complete) read has put it beyond the events of other routes too.
    pub covered_through: i64,
    /// How many of the events had ids below the cursor: late commits found by the look-back.
    pub late: usize,
}

/// One page of a full sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SweepPage {
    /// Ids that the lane does not know although its reads have passed them, with their ordering keys.
    /// The relay takes out those that it dropped itself; what remains is a defect of the proof.
    pub unknown: Vec<(i64, u64)>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<i64>,
}

/// A reader with a cursor of its own over the buckets of one ownership.
///
/// A lane starts from zero and is used by one task, one call after another. It is the memory of which ids are
/// somewhere in the relay; see `docs/lifecycle.md`.
///
/// # Cancel safety
/// A read that is dropped or fails has returned nothing: its events are read again. `forget` and `dropped` of its
/// request are taken in all the same, before anything can fail.
#[async_trait]
pub trait Lane: fmt::Debug + Send {
    /// Reads in one snapshot: a late event and its successor are seen together.
    ///
    /// # Errors
    /// [`StoreErrorKind::Restarted`] when ids may have been reset: the lane must be drained and opened anew.
    /// Otherwise what stood in the way; the call may be repeated.
    async fn read(&mut self, request: ReadRequest) -> Result<ReadBatch, StoreError>;

    /// Looks for ids that the lane does not know although no unseen one can be there any more: at most up to where
    /// its look-back begins. A commit of this moment is no defect. From `after` on, a page at a time.
    ///
    /// # Errors
    /// As [`Lane::read`].
    async fn sweep(&mut self, after: i64) -> Result<SweepPage, StoreError>;

    /// Keeps to the events of these buckets from now on; `gained` says which of them may have been another relay's
    /// since this lane last kept to them. When there are any, the lane goes back to zero and knows what it knew: forward
    /// reads return all that it does not know in id order, so no later event of a gained aggregate comes before an
    /// earlier one. That goes for what was dropped too, so the relay must not ask for it by its keys any more: what it
    /// has not told yet as dropped, it tells as forgotten, like what was returned of a bucket that was given back.
    fn turn_to(&mut self, buckets: Buckets, gained: Buckets);
}

/// An event that the broker has confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmed {
    /// Its row.
    pub id: i64,
    /// Its identity: ids can come back after a restore, so both must match.
    pub event_id: EventId,
    /// Whether a retry row may exist for it.
    pub retried: bool,
}

/// A change of an event's state that only the owner of its bucket may make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteBack {
    /// The row.
    pub id: i64,
    /// Its identity.
    pub event_id: EventId,
    /// Its bucket, for the fence.
    pub bucket: u16,
    /// Charged attempts so far, this one included.
    pub attempts: u32,
    /// As [`Retrying::crashes`], from now on. [`Change::Acquit`] sets it to zero whatever stands here.
    pub crashes: u32,
    /// The error kind's name.
    pub kind: &'static str,
    /// The error in one line, at most 4 KiB, without secrets or payloads.
    pub error: String,
    /// What becomes of the event.
    pub change: Change,
}

/// What a [`WriteBack`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It waits: the next attempt is due after this delay, added to the database's clock.
    Retry {
        /// From now.
        delay: Duration,
    },
    /// The relay has outlived sending it: no crash is charged to it any more, and it is due now. What attempts have cost
    /// stays; without any, the retry row is removed.
    Acquit,
    /// It is given up and stays in its place, until an operator decides: later events of its aggregate wait.
    Block,
    /// It is given up and becomes a dead letter.
    Dead,
}

/// What became of a [`WriteBack`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteBackStatus {
    /// Written.
    Done,
    /// The token is stale: another relay owns the bucket. Nothing was changed.
    Fenced,
    /// The event is no longer there. Nothing was changed but a left-over retry row, which is removed.
    Gone,
}

/// How the table sees an event that waits for its next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryState {
    /// It has a retry row.
    Waiting(Retrying),
    /// It has none (an operator removed it): due now, no attempts charged.
    Clear,
    /// The event itself is no longer there.
    Gone,
}

/// The outbox of one database.
///
/// # Contract
/// - Nothing is visible before its transaction commits; ids are returned in order.
/// - Deleting a confirmed event is right whoever owns its bucket now; every other write-back is fenced.
/// - A route's reads cost nothing for other routes' backlog that they have passed.
/// - A route whose calls hang takes no connection from another.
/// - All delays are added to the database's clock and never compared with the caller's.
/// - Every call is bounded in time.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Joins the relays that share a route, and takes what is free, up to its share. Relays with the same routes in the
    /// same order share them; relays with other routes wait until the last of these has given back what it owns, or
    /// its lease has ended. Whoever has joined, buckets or not, counts until it releases or its lease ends.
    ///
    /// # Errors
    /// What stood in the way. It may have joined all the same; its lease then ends by itself.
    async fn acquire(&self, route: &Selection, lease: Duration) -> Result<Acquisition, StoreError>;

    /// Takes more of what is free, up to the relay's share, and answers with all that is owned then. The lease is not
    /// extended. A bucket that a call took whose answer was lost is free to this relay, and to no other.
    ///
    /// # Errors
    /// What stood in the way; it may have taken some all the same: call it again.
    async fn take_more(&self, ownership: &Ownership) -> Result<Acquisition, StoreError>;

    /// Extends the lease, and tells how the relay stands among the others. One statement.
    ///
    /// # Errors
    /// What stood in the way; the lease may or may not have been extended.
    async fn renew(&self, ownership: &Ownership) -> Result<Renewal, StoreError>;

    /// Gives these buckets of the ownership back and keeps the others. Only with the tokens that it holds: a call that
    /// comes late frees nothing that was taken anew.
    ///
    /// # Errors
    /// What stood in the way; they may or may not have been given back. Until a repeated call has succeeded nothing
    /// more may be taken.
    async fn give_back(&self, ownership: &Ownership, buckets: Buckets) -> Result<(), StoreError>;

    /// Gives all back and leaves, so that the next relay need not wait for the end of the lease. It is no death: the next
    /// owner finds none in [`Ownership::deaths`].
    ///
    /// # Errors
    /// What stood in the way; the lease then ends by itself.
    async fn release(&self, ownership: &Ownership) -> Result<(), StoreError>;

    /// Opens a reader from zero. It returns, looks back for and sweeps the events of the ownership's selection
    /// and buckets only.
    ///
    /// # Errors
    /// What stood in the way.
    async fn open_lane(&self, ownership: &Ownership) -> Result<Box<dyn Lane>, StoreError>;

    /// Opens a reader from zero over the events that none of these routes takes. Nobody owns them: it is for telling
    /// that they are there.
    ///
    /// # Errors
    /// What stood in the way.
    async fn open_unrouted_lane(&self, routes: &Routes) -> Result<Box<dyn Lane>, StoreError>;

    /// Removes confirmed events, on behalf of a route, which says only whose connections are used. Unfenced and idempotent: an event that is no longer there is no error.
    ///
    /// # Errors
    /// What stood in the way; the events may or may not have been removed, so call it again.
    async fn settle(&self, route: &str, confirmed: &[Confirmed]) -> Result<(), StoreError>;

    /// Writes retries and dead letters, each behind the fence of its bucket. One status each, in order.
    ///
    /// # Errors
    /// What stood in the way. Nothing or everything may have been written; call it again: a repeated change finds
    /// its own result ([`WriteBackStatus::Gone`] for a dead letter).
    async fn write_back(
        &self,
        ownership: &Ownership,
        changes: &[WriteBack],
    ) -> Result<Vec<WriteBackStatus>, StoreError>;

    /// Says that this owner has outlived the events that it took over with these buckets: their [`Ownership::deaths`] are
    /// zero for the next owner. Buckets that are no longer this owner's are left alone.
    ///
    /// # Errors
    /// What stood in the way; call it again.
    async fn forget_deaths(&self, ownership: &Ownership, buckets: Buckets) -> Result<(), StoreError>;

    /// How the table sees these waiting events of a route, in order; operators may have changed it.
    ///
    /// # Errors
    /// What stood in the way.
    async fn retry_states(&self, route: &str, waiting: &[(i64, EventId)]) -> Result<Vec<RetryState>, StoreError>;
}

/// Wakes a relay that found nothing to do.
///
/// # Cancel safety
/// `wait` must be cancel safe: the relay drops it whenever something else needs attention and calls it again.
#[async_trait]
pub trait Wakeup: fmt::Debug + Send {
    /// Returns when the relay should read again, and why: something may have been committed, or the poll interval is
    /// over.
    async fn wait(&mut self) -> WakeCause;

    /// Takes in what the relay does, so that it need not be woken for what it has seen. Does nothing by default.
    fn note(&mut self, activity: Activity) {
        let _ = activity;
    }
}

/// Why a [`Wakeup`] has a relay read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WakeCause {
    /// A poll interval is over.
    Poll,
    /// A commit has rung, or another route of the process has found something.
    Doorbell,
    /// The look before a sleep that only a commit ends, and the one that makes sure now and then that none was missed.
    Check,
}

impl WakeCause {
    /// Every cause, so that one that never happens can be shown as 0.
    pub const ALL: [Self; 3] = [Self::Poll, Self::Doorbell, Self::Check];

    /// The name in metrics: lower case, stable.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Doorbell => "doorbell",
            Self::Check => "check",
        }
    }
}

/// What a relay does with a route, as far as its [`Wakeup`] must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// A read of new events begins. If it finds nothing, [`Wakeup::wait`] comes next.
    Reading,
    /// A read has found something, or more than it could take.
    Found,
    /// The route is not ours any more, or its reader is being opened anew: it reads nothing.
    Resting,
}

/// What stood in the way of a store's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The database can't be reached, is starting, or did not answer in time. Heals by itself.
    Unavailable,
    /// Tables are missing, too old or not permitted. An operator must act; the relay keeps trying.
    Unprepared,
    /// The server was restarted, replaced or its ids were reset: what is known about ids holds no longer.
    Restarted,
    /// Any other refusal.
    Failed,
}

impl StoreErrorKind {
    /// The name in logs: lower case, stable.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Unprepared => "unprepared",
            Self::Restarted => "restarted",
            Self::Failed => "failed",
        }
    }
}

/// An error of a store's call: a kind, a sentence for the operator, and the cause.
#[derive(Debug, Clone)]
pub struct StoreError {
    kind: StoreErrorKind,
    detail: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// An error with a sentence for the operator: lower case, no secrets.
    pub fn new(kind: StoreErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), source: None }
    }

    /// Keeps the error that caused this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// What stood in the way.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|error| error as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_traits_are_object_safe() {
        fn takes(_: Option<&dyn Store>, _: Option<&dyn Lane>, _: Option<&dyn Wakeup>) {}
        takes(None, None, None);
    }
}
