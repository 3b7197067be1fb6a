//! The broker that all ordinary tests of a run share.

use std::sync::OnceLock;

use super::{Kafka, Options};
use crate::{Result, require_or_skip};

/// The address of a running broker, `kafka://host:port`. Tests that put a proxy before their broker, or kill it, start
/// their own all the same: a broker tells its clients where to connect, and must then name the proxy.
pub const URL_VARIABLE: &str = "OUTBOX_TEST_KAFKA_URL";

/// The address of the shared broker: [`URL_VARIABLE`], else one started for this process at the first call. Never stop
/// or pause it.
///
/// # Errors
/// When the variable is not set and no broker can be started here.
pub fn shared() -> Result<String> {
    std::env::var(URL_VARIABLE).or_else(|_| own().as_ref().map(Kafka::url).map_err(Clone::clone))
}

/// [`shared`] for a test that skips visibly without Kafka, or fails where it is required.
pub fn shared_or_skip() -> Option<String> {
    require_or_skip("kafka", shared())
}

/// A static is never dropped: the broker's guard ends it with this process.
fn own() -> &'static Result<Kafka> {
    static OWN: OnceLock<Result<Kafka>> = OnceLock::new();
    OWN.get_or_init(|| Kafka::start(Options::default()))
}
