//! The contract between a relay and an adapter for one broker.

use std::borrow::Cow;
use std::fmt;

use async_trait::async_trait;

use crate::{Envelope, ErrorKind, PublishError};

/// What a publisher's broker can do, so that the relay neither holds back more nor less than it must.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Within one `publish` call the events of one aggregate arrive in the order of the slice, and after the first
    /// one that fails none of its later ones is sent. Default `false`: the relay then hands over the next event of
    /// an aggregate only when the one before it is confirmed.
    pub keeps_order_in_batch: bool,
    /// The broker drops a second copy of an event id by itself (within its window). Default `false`.
    pub deduplicates: bool,
    /// The broker says so when it drops a copy ([`Receipt::duplicate`]). Default `false`: a dropped copy is confirmed
    /// like a new message.
    pub reports_duplicates: bool,
    /// The largest message in bytes, as far as it is known before sending: the body, and whatever else the broker
    /// counts. Default `None`: unknown.
    pub max_event_bytes: Option<usize>,
}

impl Capabilities {
    /// The cautious set: no order within a batch, no deduplication, no known limit.
    pub const CAUTIOUS: Self =
        Self { keeps_order_in_batch: false, deduplicates: false, reports_duplicates: false, max_event_bytes: None };

    /// Declares that order within a batch is kept, also through failures.
    #[must_use]
    pub const fn keeping_order_in_batch(mut self) -> Self {
        self.keeps_order_in_batch = true;
        self
    }

    /// Declares that the broker drops second copies and says so.
    #[must_use]
    pub const fn deduplicating(mut self) -> Self {
        self.deduplicates = true;
        self.reports_duplicates = true;
        self
    }

    /// Declares that the broker drops second copies without a word.
    #[must_use]
    pub const fn deduplicating_silently(mut self) -> Self {
        self.deduplicates = true;
        self.reports_duplicates = false;
        self
    }

    /// Declares the largest message.
    #[must_use]
    pub const fn with_max_event_bytes(mut self, bytes: usize) -> Self {
        self.max_event_bytes = Some(bytes);
        self
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Self::CAUTIOUS
    }
}

/// The broker's positive, durable, routed confirmation of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Receipt {
    /// The broker says that it had this event id already.
    pub duplicate: bool,
}

impl Receipt {
    /// Confirmed as a new message.
    #[must_use]
    pub const fn confirmed() -> Self {
        Self { duplicate: false }
    }

    /// Confirmed as a copy that the broker dropped.
    #[must_use]
    pub const fn duplicate() -> Self {
        Self { duplicate: true }
    }
}

/// What became of one event.
pub type Outcome = Result<Receipt, PublishError>;

/// One outcome for each event of a batch, in the order of the batch.
///
/// A slot that nobody filled is *unconfirmed*: a publisher that forgets an event can't turn it into a success.
#[derive(Debug, Clone)]
pub struct PublishReport {
    slots: Vec<Option<Outcome>>,
}

impl PublishReport {
    /// A report for a batch of `events`, all slots empty.
    #[must_use]
    pub fn unfilled(events: usize) -> Self {
        Self { slots: vec![None; events] }
    }

    /// The same error for each event of a batch.
    #[must_use]
    pub fn all_failed(events: usize, error: &PublishError) -> Self {
        Self { slots: vec![Some(Err(error.clone())); events] }
    }

    /// Fills the slot of the event at `index`. The first outcome of a slot stays; an index beyond the batch is
    /// ignored, since there is no event that it could speak for.
    pub fn set(&mut self, index: usize, outcome: Outcome) {
        if let Some(slot @ None) = self.slots.get_mut(index) {
            *slot = Some(outcome);
        }
    }

    /// Whether the slot at `index` has an outcome.
    #[must_use]
    pub fn is_filled(&self, index: usize) -> bool {
        matches!(self.slots.get(index), Some(Some(_)))
    }

    /// The number of slots.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the batch was empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The outcomes for a batch of `events`: exactly that many, unfilled and missing slots as unconfirmed.
    #[must_use]
    pub fn into_outcomes(mut self, events: usize) -> Vec<Outcome> {
        self.slots.resize(events, None);
        self.slots
            .into_iter()
            .map(|slot| {
                slot.unwrap_or_else(|| {
                    let detail = "the publisher gave no outcome for this event";
                    Err(PublishError::new(ErrorKind::Unconfirmed, detail))
                })
            })
            .collect()
    }
}

/// Brings events to one destination.
///
/// # Contract
/// - `publish` gives one outcome for each event, in order; success means the broker's positive, durable, routed
///   confirmation. A missing answer is [`ErrorKind::Unconfirmed`], never success and never `Unavailable`.
/// - It cuts batches to the broker's limits itself, by count and by bytes, and checks names, headers and sizes
///   before it sends.
/// - Every wait is bounded, reconnecting is its own business, and calls may run concurrently.
/// - An empty batch does no I/O.
/// - No error, log line or `Debug` text shows a secret or a payload.
///
/// # Cancel safety
/// A dropped `publish` future leaves the publisher usable; what it had sent may still arrive.
#[async_trait]
pub trait Publisher: fmt::Debug + Send + Sync + 'static {
    /// What the broker can do. Constant over the publisher's life.
    fn capabilities(&self) -> Capabilities;

    /// The topic that an event goes to: the unit that [`ErrorKind::Misconfigured`] pauses.
    ///
    /// Pure and cheap. An event whose topic can't be rendered gets any text here and `Rejected` from `publish`.
    fn topic<'a>(&'a self, event: &'a Envelope) -> Cow<'a, str>;

    /// Sends a batch and waits for the broker's answers.
    async fn publish(&self, events: &[Envelope]) -> PublishReport;

    /// Asks whether the destination can be reached now: connects if need be, sends no event.
    ///
    /// # Errors
    /// What stands in the way: `Unavailable`, `Throttled` or `Misconfigured`.
    async fn check(&self) -> Result<(), PublishError>;

    /// Flushes and disconnects. Idempotent; after it `publish` answers `Unavailable` for each event.
    async fn close(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_nobody_filled_is_unconfirmed() {
        let mut report = PublishReport::unfilled(2);
        report.set(1, Ok(Receipt::confirmed()));
        report.set(7, Ok(Receipt::confirmed()));
        let outcomes = report.into_outcomes(3);
        let kinds: Vec<_> = outcomes.iter().map(|o| o.as_ref().map_err(PublishError::kind)).collect();
        assert_eq!(kinds, [Err(ErrorKind::Unconfirmed), Ok(&Receipt::confirmed()), Err(ErrorKind::Unconfirmed)]);
    }

    #[test]
    fn the_first_outcome_of_a_slot_stays() {
        let mut report = PublishReport::unfilled(1);
        report.set(0, Err(PublishError::new(ErrorKind::Failed, "no")));
        report.set(0, Ok(Receipt::confirmed()));
        assert!(report.into_outcomes(1)[0].is_err());
    }

    #[test]
    fn the_trait_is_object_safe() {
        fn takes(_: Option<&dyn Publisher>) {}
        takes(None);
    }
}
