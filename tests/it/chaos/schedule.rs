//! What goes wrong when: a list that follows from its seed alone.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use fastrand::Rng;

/// The pause between the end of one fault and the next: long enough for work to go on, short enough for many faults.
const PAUSE_MS: RangeInclusive<u64> = 300..=2_500;
/// How long a fault lasts that has an end. Longer than the lease of these relays, sometimes.
const LENGTH_MS: RangeInclusive<u64> = 100..=5_000;

/// One thing that goes wrong. Relays are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A relay is killed and started again.
    Kill(usize),
    /// A relay is asked to stop, and a new one started.
    Deploy(usize),
    /// A relay is frozen, and goes on.
    Freeze(usize, Duration),
    /// The broker is killed and started again.
    KillBroker(Duration),
    /// The database ends at once and recovers.
    CrashDatabase,
    /// Connections are cut.
    Cut(usize, Side),
    /// Nothing gets through, and nobody is told.
    Silence(usize, Side, Duration),
    /// Requests arrive, answers are lost.
    LoseReplies(usize, Side, Duration),
    /// Everything is slow.
    Slow(usize, Side, Duration),
    /// A transaction that took its ids stays open.
    LateCommit(Duration),
    /// The same, and is rolled back.
    LateRollback(Duration),
    /// Nothing but one short transaction at a time: where the server is silent the worst holes show.
    Quiet(Duration),
}

/// Which connections of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Database,
    Broker,
}

impl Fault {
    fn random(rng: &mut Rng, relays: usize) -> Self {
        let relay = rng.usize(..relays);
        let side = if rng.bool() { Side::Database } else { Side::Broker };
        let length = Duration::from_millis(rng.u64(LENGTH_MS));
        match rng.u8(..16) {
            0..=2 => Self::Kill(relay),
            3 => Self::Deploy(relay),
            4 | 5 => Self::Freeze(relay, length * 2),
            6 => Self::KillBroker(length / 4),
            7 => Self::CrashDatabase,
            8 => Self::Cut(relay, side),
            9 => Self::Silence(relay, side, length),
            10 => Self::LoseReplies(relay, side, length / 2),
            11 => Self::Slow(relay, side, length),
            12 | 13 => Self::LateCommit(length),
            14 => Self::LateRollback(length),
            _ => Self::Quiet(length),
        }
    }

    /// How many relays may have handed a window to the broker without hearing of it.
    pub(crate) const fn doubts(self, relays: usize) -> usize {
        match self {
            Self::Kill(_) | Self::Freeze(..) | Self::Cut(..) | Self::Silence(..) | Self::LoseReplies(..) => 1,
            // A stop that takes longer than its grace leaves what is unconfirmed.
            Self::Deploy(_) | Self::Slow(..) => 1,
            Self::KillBroker(_) | Self::CrashDatabase => relays,
            Self::LateCommit(_) | Self::LateRollback(_) | Self::Quiet(_) => 0,
        }
    }
}

/// The faults in their order, each with the pause before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schedule(Vec<(Duration, Fault)>);

impl Schedule {
    /// Faults for about so long.
    pub(crate) fn new(seed: u64, length: Duration, relays: usize) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (mut faults, mut total) = (Vec::new(), Duration::ZERO);
        while total < length {
            let pause = Duration::from_millis(rng.u64(PAUSE_MS));
            let fault = Fault::random(&mut rng, relays);
            total += pause
                + match fault {
                    Fault::Freeze(_, length)
                    | Fault::Silence(_, _, length)
                    | Fault::LoseReplies(_, _, length)
                    | Fault::Slow(_, _, length)
                    | Fault::KillBroker(length)
                    | Fault::LateCommit(length)
                    | Fault::LateRollback(length)
                    | Fault::Quiet(length) => length,
                    Fault::Kill(_) | Fault::Deploy(_) | Fault::CrashDatabase | Fault::Cut(..) => Duration::ZERO,
                };
            faults.push((pause, fault));
        }
        Self(faults)
    }

    pub(crate) fn steps(&self) -> &[(Duration, Fault)] {
        &self.0
    }

    /// The relays' windows that may have been sent twice.
    pub(crate) fn doubts(&self, relays: usize) -> usize {
        self.0.iter().map(|(_, fault)| fault.doubts(relays)).sum()
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (pause, fault) in &self.0 {
            writeln!(f, "  +{pause:>7.1?} {fault:?}")?;
        }
        Ok(())
    }
}

#[test]
fn a_seed_says_everything() {
    let schedule = |seed| Schedule::new(seed, Duration::from_secs(60), 3);
    assert_eq!(schedule(7), schedule(7));
    assert_ne!(schedule(7), schedule(8));
    assert!(schedule(7).steps().len() > 10);
}
