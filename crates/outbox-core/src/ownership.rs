//! Who shares a route, and what each relay owns of it.

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use crate::{Buckets, Routes, Selection};

/// A relay's right to buckets of a route: until its lease ends, nobody else claims their events.
///
/// Each bucket has a fencing token that grows with every change of owner; a write-back carries the token that was
/// valid when its event was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// The route, and which events it takes.
    pub selection: Selection,
    /// This run of the relay. Ownership never depends on a name.
    pub owner: Uuid,
    /// How long the lease lasts from each renewal, by the database's clock.
    pub lease: Duration,
    /// The fencing token of each bucket that is owned; there may be none.
    pub tokens: BTreeMap<u16, i64>,
    /// How many owners in a row of each bucket have ended without giving it back, where there were any: none after a
    /// release, or once [`Store::forget_deaths`](crate::Store::forget_deaths) has said that this owner outlived what it
    /// took over. To give back a bucket among others leaves them to its next owner.
    pub deaths: BTreeMap<u16, u32>,
}

impl Ownership {
    /// The route's name.
    #[must_use]
    pub fn route(&self) -> &str {
        self.selection.name()
    }

    /// What is owned.
    #[must_use]
    pub fn buckets(&self) -> Buckets {
        self.tokens.keys().copied().collect()
    }

    /// The part of it that is in this set.
    #[must_use]
    pub fn only(&self, buckets: Buckets) -> Self {
        let tokens = self.tokens.iter().filter(|(bucket, _)| buckets.contains(**bucket));
        let tokens = tokens.map(|(bucket, token)| (*bucket, *token)).collect();
        let deaths = self.deaths.iter().filter(|(bucket, _)| buckets.contains(**bucket));
        let deaths = deaths.map(|(bucket, deaths)| (*bucket, *deaths)).collect();
        Self { selection: self.selection.clone(), owner: self.owner, lease: self.lease, tokens, deaths }
    }
}

/// What became of the wish to own a share of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Acquisition {
    /// This relay is one of those that share the route. It owns what was free, up to its share; that may be nothing.
    Owned(Ownership),
    /// It is none of them, or no longer: its lease has ended and another relay has found that out.
    Lost,
    /// Relays with other routes are at work. They may publish the same events, so none of ours may be owned until the
    /// last of them has ended.
    OtherRoutes {
        /// Their routes; `None` when they can't be read, since a newer program wrote them.
        in_force: Option<Routes>,
    },
}

impl Acquisition {
    /// The ownership, if it has a bucket.
    #[must_use]
    pub fn owned(self) -> Option<Ownership> {
        match self {
            Self::Owned(ownership) => Some(ownership).filter(|ownership| !ownership.tokens.is_empty()),
            Self::Lost | Self::OtherRoutes { .. } => None,
        }
    }
}

/// What became of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Renewal {
    /// The lease is extended, and so stands the relay among the others.
    Held(Standing),
    /// The ownership is lost; it never comes back.
    Lost,
}

impl Renewal {
    /// Whether the lease is extended.
    #[must_use]
    pub const fn is_held(self) -> bool {
        matches!(self, Self::Held(_))
    }
}

/// How a relay stands among those that share a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Live relays of the route with the same routes, this one included.
    pub relays: usize,
    /// How many buckets this one should own: see [`fair_share`](crate::fair_share).
    pub share: usize,
    /// Buckets that this one might take: nobody owns them, or their owner's lease has ended, or a call of this relay
    /// took them whose answer was lost.
    pub free: usize,
}
