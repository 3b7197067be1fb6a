//! When a relay may sleep, and what it owes to others when it wakes: the doorbell's policy, without I/O.
//!
//! Producers ask for the *key* in shared mode when they insert, and hold it until after their commit is visible. Whoever
//! can't have it notifies. So the key, held exclusively by a relay, means "ring": from then on each commit does.

/// How a sleeping relay is covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Cover {
    /// It holds the key itself.
    Own,
    /// Another relay holds it, and notifies when it gives it back.
    Other,
}

/// What the answer to a try for the key can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// It is ours.
    Got,
    /// Another relay holds it exclusively.
    Held,
    /// Producers hold it: there is work, or there will be in a moment.
    Busy,
}

/// Where a relay stands, and so what it does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Bell {
    /// Its routes read on their own until all of them find nothing.
    Awake,
    /// Forgets notifications that have come, then asks for the key.
    Asking,
    /// Lets each route read once more: what was committed before the key was held has not rung.
    Verifying(Cover),
    /// Waits for a notification, or for the fallback.
    Asleep(Cover),
    /// Gives the key back, and then notifies those whom it covered: never the other way round.
    GivingBack,
}

/// What happened meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Seen {
    /// All routes have read and found nothing.
    Nothing,
    /// A route has found something.
    Work,
    /// A notification came.
    Rung,
    /// The fallback interval is over.
    Late,
    /// The answer to a try for the key.
    Answer(Key),
    /// The key is given back.
    GivenBack,
}

impl Bell {
    /// The state that follows. What makes no sense in a state leaves it as it is.
    #[must_use]
    pub(super) const fn after(self, seen: Seen) -> Self {
        match (self, seen) {
            (Self::GivingBack, Seen::GivenBack)
            | (Self::Asking, Seen::Answer(Key::Busy))
            | (Self::Verifying(Cover::Other) | Self::Asleep(Cover::Other), Seen::Work | Seen::Rung) => Self::Awake,
            // Whoever covered us may have died: asking again tells.
            (Self::Awake, Seen::Nothing) | (Self::Asleep(Cover::Other), Seen::Late) => Self::Asking,
            (Self::Asking, Seen::Answer(Key::Got)) | (Self::Asleep(Cover::Own), Seen::Late) => {
                Self::Verifying(Cover::Own)
            }
            (Self::Asking, Seen::Answer(Key::Held)) => Self::Verifying(Cover::Other),
            (Self::Verifying(cover), Seen::Nothing) => Self::Asleep(cover),
            // At once, whatever is found: an idle holder beside a busy relay makes every commit notify.
            (Self::Verifying(Cover::Own) | Self::Asleep(Cover::Own), Seen::Work | Seen::Rung) => Self::GivingBack,
            (state, _) => state,
        }
    }

    /// Whether routes may poll on their own.
    #[must_use]
    pub(super) const fn is_awake(self) -> bool {
        matches!(self, Self::Awake | Self::GivingBack)
    }
}
