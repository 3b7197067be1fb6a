//! What a test tells the memory publisher to do with an event.

use outbox_core::{ErrorKind, PublishError};

use super::Hold;

/// What happens to one event that is handed to a [`MemoryPublisher`](super::MemoryPublisher).
#[derive(Debug, Clone)]
pub enum Scripted {
    /// It arrives and is confirmed.
    Confirm,
    /// It is confirmed as a copy that the broker had already; nothing arrives.
    ConfirmDuplicate,
    /// It does not arrive, and this error says so.
    Fail(PublishError),
    /// It arrives, and yet the outcome is this error: a lost answer when its kind is `Unconfirmed`.
    DeliverAndFail(PublishError),
    /// It does not arrive and its slot stays empty.
    Forget,
    /// It arrives and its slot stays empty.
    DeliverAndForget,
    /// The publish call waits here, then goes on with what follows. Events of the same call that come after it
    /// wait too; other calls do not.
    Hold(Hold, Box<Self>),
    /// The publish call panics here; what came before it in the batch has arrived.
    Panic,
}

impl Scripted {
    /// [`Fail`](Self::Fail) with an error of this kind.
    #[must_use]
    pub fn fail(kind: ErrorKind) -> Self {
        Self::Fail(PublishError::new(kind, "as the test says"))
    }

    /// [`DeliverAndFail`](Self::DeliverAndFail) with an error of this kind.
    #[must_use]
    pub fn deliver_and_fail(kind: ErrorKind) -> Self {
        Self::DeliverAndFail(PublishError::new(kind, "as the test says"))
    }

    /// Waits for the hold's release, then goes on with `then`.
    #[must_use]
    pub fn hold(hold: &Hold, then: Self) -> Self {
        Self::Hold(hold.clone(), Box::new(then))
    }
}
