//! What a test tells the memory store to do wrong, and how often it was called.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use outbox_core::{StoreError, StoreErrorKind};

use super::Hold;

/// A method of `Store` or `Lane`: one statement of a real database each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// `Store::acquire`.
    Acquire,
    /// `Store::take_more`.
    TakeMore,
    /// `Store::renew`.
    Renew,
    /// `Store::give_back`.
    GiveBack,
    /// `Store::release`.
    Release,
    /// `Store::open_lane`.
    OpenLane,
    /// `Lane::read`.
    Read,
    /// `Lane::sweep`.
    Sweep,
    /// `Store::settle`.
    Settle,
    /// `Store::write_back`.
    WriteBack,
    /// `Store::forget_deaths`.
    ForgetDeaths,
    /// `Store::retry_states`.
    RetryStates,
}

/// What happens to one call.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Nothing: lets a call pass, so that the next fault hits the call after it.
    Pass,
    /// It fails and has done nothing.
    Refuse(StoreErrorKind),
    /// Its work commits, then it fails: the answer was lost.
    FailAfterWork(StoreErrorKind),
    /// It waits before its work.
    HoldBefore(Hold),
    /// Its work commits (a read takes its snapshot), then it waits before it answers.
    HoldAfter(Hold),
    /// It takes this long, on tokio's clock, before its work.
    Delay(Duration),
    /// It panics before its work: a defect that ends the task which made it.
    Panic,
}

impl Fault {
    pub(super) async fn before(&self) -> Result<(), StoreError> {
        match self {
            Self::Refuse(kind) => return Err(StoreError::new(*kind, "refused by the test")),
            Self::HoldBefore(hold) => hold.pass().await,
            Self::Delay(delay) => tokio::time::sleep(*delay).await,
            Self::Panic => panic!("as the test says"),
            Self::Pass | Self::FailAfterWork(_) | Self::HoldAfter(_) => {}
        }
        Ok(())
    }

    pub(super) async fn after(&self) -> Result<(), StoreError> {
        match self {
            Self::FailAfterWork(kind) => Err(StoreError::new(*kind, "answer lost by the test")),
            Self::HoldAfter(hold) => {
                hold.pass().await;
                Ok(())
            }
            Self::Pass | Self::Refuse(_) | Self::HoldBefore(_) | Self::Delay(_) | Self::Panic => Ok(()),
        }
    }
}

/// The faults to come and the calls so far of one relay's connection.
#[derive(Debug, Default)]
pub(super) struct Plan {
    queues: BTreeMap<Call, VecDeque<Fault>>,
    calls: BTreeMap<Call, u64>,
    pub(super) down: Option<StoreErrorKind>,
}

impl Plan {
    pub(super) fn push(&mut self, call: Call, fault: Fault) {
        self.queues.entry(call).or_default().push_back(fault);
    }

    pub(super) fn calls(&self, call: Call) -> u64 {
        self.calls.get(&call).copied().unwrap_or(0)
    }

    /// Counts a call and says what happens to it. A scripted fault waits for its turn while the database is down.
    pub(super) fn next(&mut self, call: Call) -> Fault {
        *self.calls.entry(call).or_default() += 1;
        match self.down {
            Some(kind) => Fault::Refuse(kind),
            None => self.queues.get_mut(&call).and_then(VecDeque::pop_front).unwrap_or(Fault::Pass),
        }
    }
}
