//! The work that runs beside the session's loop: each future brings back what it was given, with its result.

use std::any::Any;
use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use outbox_core::{
    Acquisition, Buckets, Confirmed, Envelope, ErrorKind, EventId, Lane, Outcome, Ownership, PublishError,
    PublishReport, Publisher, ReadBatch, ReadRequest, Renewal, RetryState, Store, StoreError, SweepPage, WriteBack,
    WriteBackStatus,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::order::Asked;
use super::pending::Pending;
use super::spill::Reread;
use super::topics::Topics;
use crate::metrics::Claim;

/// Why a batch was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    Ordinary,
    /// One event alone, to see whether it is the one that cuts the connection.
    Suspect,
    /// One event, to see whether its paused topic is back.
    TopicProbe(Arc<str>),
}

/// Which route of the process sends a careful event: one at a time, since what kills one kills all.
pub(super) type Turns = Arc<Semaphore>;

/// A route's turn; it ends when this is dropped.
pub(super) type Turn = OwnedSemaphorePermit;

/// A write-back with the event that it is about.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) write_back: WriteBack,
    /// Why the event is sent once this is written; `None` when it is not.
    pub(super) then_send: Option<Purpose>,
    /// How often the database has refused it alone.
    pub(super) refusals: u32,
    pub(super) pending: Pending,
}

/// A confirmed event until its deletion has committed, and what it takes of the window.
#[derive(Debug)]
pub(super) struct Unsettled {
    pub(super) event: Confirmed,
    pub(super) bucket: u16,
    pub(super) bytes: usize,
    pub(super) claim: Option<Arc<Claim>>,
}

/// What a piece of work brought back.
#[derive(Debug)]
pub(super) enum Done {
    Read {
        lane: Box<dyn Lane>,
        reread: Option<Reread>,
        result: Result<ReadBatch, StoreError>,
    },
    Swept {
        lane: Box<dyn Lane>,
        after: i64,
        result: Result<SweepPage, StoreError>,
    },
    Published {
        batch: Vec<Pending>,
        purpose: Purpose,
        outcomes: Result<Vec<Outcome>, String>,
    },
    /// Not handed to the publisher: the lease may have ended.
    Withheld {
        batch: Vec<Pending>,
        purpose: Purpose,
    },
    Settled {
        confirmed: Vec<Unsettled>,
        result: Result<(), StoreError>,
    },
    WroteBack {
        changes: Vec<Change>,
        result: Result<Vec<WriteBackStatus>, StoreError>,
    },
    Probed(Result<(), PublishError>),
    /// `None` when turns are given no more, which does not happen.
    TurnCame(Option<Turn>),
    ForgotDeaths {
        buckets: Buckets,
        result: Result<(), StoreError>,
    },
    Refreshed {
        asked: Vec<Asked>,
        result: Result<Vec<RetryState>, StoreError>,
    },
    Renewed {
        sent: Instant,
        result: Result<Renewal, StoreError>,
    },
    TookMore(Result<Acquisition, StoreError>),
    GaveBack(Result<(), StoreError>),
}

pub(super) async fn read(mut lane: Box<dyn Lane>, request: ReadRequest, reread: Option<Reread>) -> Done {
    let result = lane.read(request).await;
    Done::Read { lane, reread, result }
}

pub(super) async fn sweep(mut lane: Box<dyn Lane>, after: i64) -> Done {
    let result = lane.sweep(after).await;
    Done::Swept { lane, after, result }
}

/// Publishes a batch, unless `lease_end` has come: a process that stood still may have decided on it long ago. Every way
/// to end gives an answer: the publisher's report, its panic, or the end of patience.
pub(super) async fn publish(
    publisher: Arc<dyn Publisher>,
    batch: Vec<Pending>,
    purpose: Purpose,
    patience: Duration,
    lease_end: Instant,
) -> Done {
    if Instant::now() >= lease_end {
        return Done::Withheld { batch, purpose };
    }
    let count = batch.len();
    let mut envelopes = Vec::with_capacity(count);
    let mut frames = Vec::with_capacity(count);
    for pending in batch {
        let (envelope, frame) = Frame::split(pending);
        envelopes.push(envelope);
        frames.push(frame);
    }
    let work = AssertUnwindSafe(publisher.publish(&envelopes)).catch_unwind();
    let outcomes = match tokio::time::timeout(patience, work).await {
        Ok(Ok(report)) => Ok(report.into_outcomes(count)),
        Ok(Err(panic)) => Err(panic_text(&*panic)),
        Err(_) => {
            let detail = format!("no answer within publish_timeout ({patience:?})");
            let late = PublishError::new(ErrorKind::Unconfirmed, detail);
            Ok(PublishReport::all_failed(count, &late).into_outcomes(count))
        }
    };
    let batch = frames.into_iter().zip(envelopes).map(|(frame, envelope)| frame.join(envelope)).collect();
    Done::Published { batch, purpose, outcomes }
}

/// A pending event without its envelope: the contract wants a slice of envelopes, and copying payloads is dear.
struct Frame(Pending);

impl Frame {
    fn split(mut pending: Pending) -> (Envelope, Self) {
        let hollow = Envelope {
            id: pending.envelope.id,
            event_id: pending.envelope.event_id,
            aggregate_type: String::new(),
            aggregate_id: String::new(),
            event_type: String::new(),
            payload: outbox_core::Payload::raw_json(bytes::Bytes::new()),
            headers: outbox_core::Headers::new(),
            created_at: pending.envelope.created_at,
        };
        let envelope = std::mem::replace(&mut pending.envelope, hollow);
        (envelope, Self(pending))
    }

    fn join(mut self, envelope: Envelope) -> Pending {
        self.0.envelope = envelope;
        self.0
    }
}

pub(super) async fn settle(store: Arc<dyn Store>, ownership: Arc<Ownership>, confirmed: Vec<Unsettled>) -> Done {
    let events: Vec<Confirmed> = confirmed.iter().map(|unsettled| unsettled.event).collect();
    let result = store.settle(ownership.route(), &events).await;
    Done::Settled { confirmed, result }
}

pub(super) async fn write_back(store: Arc<dyn Store>, ownership: Arc<Ownership>, changes: Vec<Change>) -> Done {
    let rows: Vec<WriteBack> = changes.iter().map(|change| change.write_back.clone()).collect();
    let result = store.write_back(&ownership, &rows).await;
    Done::WroteBack { changes, result }
}

pub(super) async fn probe(publisher: Arc<dyn Publisher>, patience: Duration) -> Done {
    let work = AssertUnwindSafe(publisher.check()).catch_unwind();
    let unavailable = |detail: String| Err(PublishError::new(ErrorKind::Unavailable, detail));
    Done::Probed(match tokio::time::timeout(patience, work).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => unavailable(format!("the publisher's check panicked: {}", panic_text(&*panic))),
        Err(_) => unavailable(format!("the destination did not answer within {patience:?}")),
    })
}

pub(super) async fn refresh(store: Arc<dyn Store>, ownership: Arc<Ownership>, asked: Vec<Asked>) -> Done {
    let events: Vec<(i64, EventId)> = asked.iter().map(|asked| (asked.id, asked.event_id)).collect();
    let result = store.retry_states(ownership.route(), &events).await;
    Done::Refreshed { asked, result }
}

pub(super) async fn turn(turns: Turns) -> Done {
    Done::TurnCame(turns.acquire_owned().await.ok())
}

pub(super) async fn forget_deaths(store: Arc<dyn Store>, ownership: Arc<Ownership>, buckets: Buckets) -> Done {
    let result = store.forget_deaths(&ownership, buckets).await;
    Done::ForgotDeaths { buckets, result }
}

pub(super) async fn renew(store: Arc<dyn Store>, ownership: Arc<Ownership>) -> Done {
    let sent = Instant::now();
    let result = store.renew(&ownership).await;
    Done::Renewed { sent, result }
}

pub(super) async fn take_more(store: Arc<dyn Store>, ownership: Arc<Ownership>) -> Done {
    Done::TookMore(store.take_more(&ownership).await)
}

/// Gives back all of this part of an ownership.
pub(super) async fn give_back(store: Arc<dyn Store>, part: Arc<Ownership>) -> Done {
    Done::GaveBack(store.give_back(&part, part.buckets()).await)
}

/// The paused topic that an event would go to.
pub(super) fn paused_topic(topics: &Topics, publisher: &dyn Publisher, head: &Pending) -> Option<Arc<str>> {
    // Rendering a topic costs an allocation: not while no topic is paused.
    // A row that can't be published needs no topic.
    if topics.is_empty() || head.defect.is_some() {
        return None;
    }
    // An event over which `topic` panics goes on to `publish`, where a panic is charged to it.
    topic_of(publisher, &head.envelope).ok().and_then(|topic| topics.paused(&topic))
}

/// The topic of an event, or the text of the publisher's panic: it must not end the loop that asks.
pub(super) fn topic_of<'a>(publisher: &'a dyn Publisher, event: &'a Envelope) -> Result<Cow<'a, str>, String> {
    std::panic::catch_unwind(AssertUnwindSafe(|| publisher.topic(event))).map_err(|panic| panic_text(&*panic))
}

pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use outbox_core::{Claimed, Headers, Payload};
    use outbox_testkit::memory::MemoryPublisher;
    use uuid::Uuid;

    use super::*;

    fn pending() -> Pending {
        let envelope = Envelope {
            id: 1,
            event_id: EventId::from_uuid(Uuid::nil()),
            aggregate_type: "a".to_owned(),
            aggregate_id: "1".to_owned(),
            event_type: "e".to_owned(),
            payload: Payload::raw_json("{}"),
            headers: Headers::new(),
            created_at: SystemTime::UNIX_EPOCH,
        };
        Pending::new(Claimed { envelope, key: 1, bucket: 0, retrying: None, defect: None }, 1, Instant::now())
    }

    /// A process that was stopped between the decision to publish and the call finds the end of its lease behind it.
    #[tokio::test(start_paused = true)]
    async fn nothing_is_handed_over_after_the_lease() {
        let publisher = Arc::new(MemoryPublisher::new());
        let call = |lease_end| {
            let patience = Duration::from_secs(1);
            publish(Arc::clone(&publisher) as _, vec![pending()], Purpose::Ordinary, patience, lease_end)
        };
        let lease_end = Instant::now() + Duration::from_secs(5);
        assert!(matches!(call(lease_end).await, Done::Published { .. }));
        tokio::time::advance(Duration::from_secs(12)).await;
        let done = call(lease_end).await;
        let Done::Withheld { batch, purpose: Purpose::Ordinary } = done else { panic!("{done:?}") };
        assert_eq!((batch.len(), publisher.view(|view| view.publishes())), (1, 1));
    }
}
