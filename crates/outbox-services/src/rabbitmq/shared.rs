//! The broker that all ordinary tests of a run share.

use std::sync::OnceLock;

use super::RabbitMq;
use crate::{Result, ServiceError, require_or_skip};

/// The AMQP address of a running broker.
pub const URL_VARIABLE: &str = "OUTBOX_TEST_AMQP_URL";

/// The address of its management interface, for example `http://guest:guest@127.0.0.1:15672`; may be absent.
pub const MANAGEMENT_URL_VARIABLE: &str = "OUTBOX_TEST_AMQP_MGMT_URL";

/// The address of the shared broker: [`URL_VARIABLE`], else a node started for this process at the first call. Never
/// stop, pause or block it.
///
/// # Errors
/// When the variable is not set and no node can be started here.
pub fn shared() -> Result<String> {
    std::env::var(URL_VARIABLE).or_else(|_| own().as_ref().map(RabbitMq::url).map_err(Clone::clone))
}

/// The management interface of the shared broker.
///
/// # Errors
/// When the broker was given by [`URL_VARIABLE`] without [`MANAGEMENT_URL_VARIABLE`], or there is none.
pub fn shared_management() -> Result<String> {
    if let Ok(url) = std::env::var(MANAGEMENT_URL_VARIABLE) {
        return Ok(url);
    }
    if std::env::var_os(URL_VARIABLE).is_some() {
        return Err(ServiceError::new(format!("set {MANAGEMENT_URL_VARIABLE} beside {URL_VARIABLE}")));
    }
    own().as_ref().map(RabbitMq::management_url).map_err(Clone::clone)
}

/// [`shared`] for a test that skips visibly without RabbitMQ, or fails where it is required.
pub fn shared_or_skip() -> Option<String> {
    require_or_skip("amqp", shared())
}

/// A static is never dropped: the node's guard ends it with this process.
fn own() -> &'static Result<RabbitMq> {
    static OWN: OnceLock<Result<RabbitMq>> = OnceLock::new();
    OWN.get_or_init(RabbitMq::start)
}
