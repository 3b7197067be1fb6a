//! What the doorbell knows of its routes, and how it lets them read.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Activity, WakeCause, Wakeup};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::bell::Seen;

/// The pauses of a route that polls: short behind an event, longer when nothing comes.
const SHORTEST_POLL: Duration = Duration::from_millis(2);
const LONGEST_POLL: Duration = Duration::from_millis(50);

/// What routes are told.
#[derive(Debug, Clone, Copy)]
struct Call {
    /// Grows whenever every route has to read; an answer counts from a read that began after that.
    number: u64,
    /// Routes may poll.
    awake: bool,
    /// Why they have to read.
    cause: WakeCause,
}

/// What a route does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It owns nothing and reads nothing.
    Resting,
    /// It reads, or has found something, or can't take more.
    AtWork,
    /// It waits; its last read began when this call was the latest, and found nothing.
    Idle(u64),
}

#[derive(Debug, Clone, Copy)]
struct Known {
    state: State,
    /// Times that it has found something.
    found: u64,
}

#[derive(Debug)]
pub(super) struct Routes {
    call: watch::Sender<Call>,
    known: Mutex<Vec<Known>>,
    /// Moves with every change of `known`.
    changes: watch::Sender<()>,
    /// A session listens.
    listening: AtomicBool,
}

impl Routes {
    pub(super) fn new() -> Arc<Self> {
        let call = watch::Sender::new(Call { number: 0, awake: true, cause: WakeCause::Doorbell });
        let (changes, listening) = (watch::Sender::new(()), AtomicBool::new(false));
        Arc::new(Self { call, known: Mutex::default(), changes, listening })
    }

    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        // A panic while the list was locked leaves a list all the same.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, place: usize, change: impl FnOnce(&mut Known)) {
        if let Some(known) = self.known().get_mut(place) {
            change(known);
        }
        self.changes.send_replace(());
    }

    /// Lets all routes read now, and poll from then on.
    pub(super) fn wake(&self) {
        let cause = WakeCause::Doorbell;
        self.call.send_modify(|call| *call = Call { number: call.number + 1, awake: true, cause });
    }

    pub(super) fn set_listening(&self, listening: bool) {
        self.listening.store(listening, Relaxed);
    }

    pub(super) fn is_listening(&self) -> bool {
        self.listening.load(Relaxed)
    }

    /// Lets no route poll by itself.
    pub(super) fn sleep(&self) {
        self.call.send_modify(|call| call.awake = false);
    }

    /// Wakes the routes for good when dropped.
    pub(super) fn awake_at_the_end(self: &Arc<Self>) -> impl Drop + use<> {
        AwakeAtTheEnd(Arc::clone(self))
    }

    /// Returns when all routes have read since the last call and for `linger` nothing was found. A process that owns
    /// nothing never is idle: it has no reason to hold the key.
    pub(super) async fn until_idle(&self, linger: Duration) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.mark_unchanged();
            if self.is_idle() {
                let found = self.found();
                sleep(linger).await;
                if self.is_idle() && self.found() == found {
                    return;
                }
            } else if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Lets each route read once and tells what they found together.
    pub(super) async fn read_once_more(&self) -> Seen {
        let mut changes = self.changes.subscribe();
        let found = self.found();
        self.call.send_modify(|call| (call.number, call.cause) = (call.number + 1, WakeCause::Check));
        loop {
            changes.mark_unchanged();
            if self.found() != found {
                return Seen::Work;
            }
            if self.is_idle() {
                return Seen::Nothing;
            }
            if changes.changed().await.is_err() {
                return Seen::Work;
            }
        }
    }

    /// Returns when a route finds something.
    pub(super) async fn work(&self) {
        let mut changes = self.changes.subscribe();
        let found = self.found();
        while self.found() == found {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn is_idle(&self) -> bool {
        let number = self.call.borrow().number;
        let known = self.known();
        let idle = |known: &Known| match known.state {
            State::Resting => true,
            State::AtWork => false,
            State::Idle(read) => read >= number,
        };
        known.iter().any(|known| known.state != State::Resting) && known.iter().all(idle)
    }

    fn found(&self) -> u64 {
        self.known().iter().map(|known| known.found).sum()
    }
}

struct AwakeAtTheEnd(Arc<Routes>);

impl Drop for AwakeAtTheEnd {
    fn drop(&mut self) {
        self.0.set_listening(false);
        self.0.wake();
    }
}

/// The wake-up of one route.
#[derive(Debug)]
pub(super) struct RouteWakeup {
    routes: Arc<Routes>,
    place: usize,
    call: watch::Receiver<Call>,
    /// The latest call when the last read began.
    read: u64,
    poll: Duration,
    /// When the poll that was begun ends: a dropped `wait` must not begin anew.
    due: Option<Instant>,
}

impl RouteWakeup {
    pub(super) fn new(routes: &Arc<Routes>) -> Self {
        let place = {
            let mut known = routes.known();
            known.push(Known { state: State::Resting, found: 0 });
            known.len() - 1
        };
        let call = routes.call.subscribe();
        Self { routes: Arc::clone(routes), place, call, read: 0, poll: SHORTEST_POLL, due: None }
    }
}

#[async_trait]
impl Wakeup for RouteWakeup {
    async fn wait(&mut self) -> WakeCause {
        let read = self.read;
        self.routes.change(self.place, |known| known.state = State::Idle(read));
        let cause = loop {
            let Call { number, awake, cause } = *self.call.borrow_and_update();
            if number > self.read {
                self.poll = SHORTEST_POLL;
                break cause;
            }
            if !awake {
                self.due = None;
                if self.call.changed().await.is_err() {
                    // Only when the doorbell's memory is gone, which this route holds itself.
                    return std::future::pending().await;
                }
                continue;
            }
            let poll = self.poll;
            // A tenth of jitter keeps many relays from polling in step.
            let due = *self.due.get_or_insert_with(|| Instant::now() + poll.mul_f64(0.95 + 0.1 * fastrand::f64()));
            tokio::select! {
                () = sleep_until(due) => {
                    self.poll = (self.poll * 2).min(LONGEST_POLL);
                    break WakeCause::Poll;
                }
                // The sender lives as long as the routes that this wake-up holds.
                _ = self.call.changed() => {}
            }
        };
        self.due = None;
        cause
    }

    fn note(&mut self, activity: Activity) {
        let state = match activity {
            Activity::Reading => {
                self.read = self.call.borrow().number;
                State::AtWork
            }
            Activity::Found => {
                self.poll = SHORTEST_POLL;
                State::AtWork
            }
            Activity::Resting => State::Resting,
        };
        let found = u64::from(activity == Activity::Found);
        self.routes.change(self.place, |known| *known = Known { state, found: known.found + found });
    }
}

impl Drop for RouteWakeup {
    fn drop(&mut self) {
        self.note(Activity::Resting);
    }
}
