//! Stops a call at a point until the test lets it go on.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// How long the waits of the memory store and publisher last before they panic, on tokio's clock: long enough for
/// every retry schedule under paused time, an end at last for a test that waits for what never comes.
pub const PATIENCE: Duration = Duration::from_secs(3600);

/// A barrier that stands until it is released. Clones are the same barrier.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use outbox_core::{Selection, Store};
/// use outbox_testkit::memory::{Call, Fault, Hold, MemoryStore};
///
/// let store = MemoryStore::new();
/// let hold = Hold::new();
/// store.script(Call::Acquire, Fault::HoldBefore(hold.clone()));
/// let (relay, route) = (store.clone(), Selection::everything("orders"));
/// let call = tokio::spawn(async move { relay.acquire(&route, std::time::Duration::from_secs(9)).await });
/// hold.reached().await;
/// assert!(!call.is_finished());
/// hold.release();
/// assert!(call.await.unwrap().unwrap().owned().is_some());
/// # });
/// ```
#[derive(Debug, Clone)]
pub struct Hold {
    state: Arc<watch::Sender<State>>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    arrivals: usize,
    released: bool,
}

impl Hold {
    /// A barrier that stands.
    #[must_use]
    pub fn new() -> Self {
        Self { state: Arc::new(watch::Sender::new(State { arrivals: 0, released: false })) }
    }

    /// Waits until a call has come to the barrier; returns at once if one ever has.
    ///
    /// # Panics
    /// After [`PATIENCE`].
    pub async fn reached(&self) {
        self.reached_times(1).await;
    }

    /// Waits until this many calls have come to the barrier since it was made.
    ///
    /// # Panics
    /// After [`PATIENCE`].
    pub async fn reached_times(&self, times: usize) {
        let mut receiver = self.state.subscribe();
        let reached = receiver.wait_for(|state| state.arrivals >= times);
        // The sender lives in `self`, so the channel can't close; what is left is the time-out.
        let in_time = tokio::time::timeout(PATIENCE, reached).await.is_ok();
        assert!(in_time, "no call came to the hold: {self:?}");
    }

    /// Lets all calls pass, the waiting ones and those to come.
    pub fn release(&self) {
        self.state.send_modify(|state| state.released = true);
    }

    /// Comes to the barrier and waits for its release.
    pub(super) async fn pass(&self) {
        let mut receiver = self.state.subscribe();
        self.state.send_modify(|state| state.arrivals += 1);
        // An error would mean that the sender is gone, which `self` keeps alive.
        let _ = receiver.wait_for(|state| state.released).await;
    }
}

impl Default for Hold {
    fn default() -> Self {
        Self::new()
    }
}
