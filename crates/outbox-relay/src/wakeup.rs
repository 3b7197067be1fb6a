//! Wake-up by polling.

use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{WakeCause, Wakeup};
use tokio::time::Instant;

/// Wakes an idle route after a fixed interval.
#[derive(Debug, Clone, Copy)]
pub struct PollWakeup {
    interval: Duration,
    /// When the wait that was begun ends: a dropped `wait` must not begin anew.
    due: Option<Instant>,
}

impl PollWakeup {
    /// Polls every `interval`.
    #[must_use]
    pub const fn new(interval: Duration) -> Self {
        Self { interval, due: None }
    }
}

#[async_trait]
impl Wakeup for PollWakeup {
    async fn wait(&mut self) -> WakeCause {
        // A tenth of jitter keeps many relays from polling in step.
        let spread = self.interval.mul_f64(0.95 + 0.1 * fastrand::f64());
        let due = *self.due.get_or_insert_with(|| Instant::now() + spread);
        tokio::time::sleep_until(due).await;
        self.due = None;
        WakeCause::Poll
    }
}
