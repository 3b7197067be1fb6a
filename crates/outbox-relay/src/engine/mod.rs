//! wait → claim → publish → settle, one pipeline per route.

use std::sync::Arc;

use outbox_core::{Publisher, Store, Wakeup};
use tokio_util::sync::CancellationToken;

use crate::{ConfigError, RouteConfig, RouteHealth};

/// A route ready to run: one reader of the outbox and one publisher.
#[derive(Debug)]
pub struct Route;

/// A core task of the route died; the process should end.
#[derive(Debug, thiserror::Error)]
#[error("route `{route}` ended: {reason}")]
pub struct RunError {
    route: String,
    reason: String,
}

impl Route {
    /// Puts a route together.
    ///
    /// # Errors
    /// Everything that is wrong with the config.
    pub fn new(
        _config: RouteConfig,
        _store: Arc<dyn Store>,
        _publisher: Arc<dyn Publisher>,
    ) -> Result<Self, Vec<ConfigError>> {
        Ok(Self)
    }

    /// Replaces the wake-up by polling.
    #[must_use]
    pub fn with_wakeup(self, _wakeup: Box<dyn Wakeup>) -> Self {
        self
    }

    /// A handle on the route's status and counters.
    #[must_use]
    pub fn health(&self) -> RouteHealth {
        unimplemented!()
    }

    /// Runs until `shutdown` is cancelled, then drains, settles and releases.
    ///
    /// # Errors
    /// [`RunError`] when a core task died.
    ///
    /// # Cancel safety
    /// Dropping the future stops the route at once; what was unconfirmed may be sent again by the next run.
    pub async fn run(self, _shutdown: CancellationToken) -> Result<(), RunError> {
        unimplemented!()
    }
}
