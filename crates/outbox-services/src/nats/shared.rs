//! The server that all ordinary tests of a run share.

use std::sync::OnceLock;

use super::{Nats, Version};
use crate::{Result, require_or_skip};

/// The address of a running server with JetStream, 2.10 or newer, for example `nats://127.0.0.1:4222`.
pub const URL_VARIABLE: &str = "OUTBOX_TEST_NATS_URL";

/// The address of the shared server of a line: [`URL_VARIABLE`] for the new one, else a server started for this process
/// at the first call. Never stop, pause or reload it.
///
/// # Errors
/// When the variable is not set and no server can be started here.
pub fn shared(line: Version) -> Result<String> {
    if let (Version::New, Ok(url)) = (line, std::env::var(URL_VARIABLE)) {
        return Ok(url);
    }
    own(line).as_ref().map(Nats::url).map_err(Clone::clone)
}

/// [`shared`] for a test that skips visibly without NATS, or fails where it is required.
pub fn shared_or_skip(line: Version) -> Option<String> {
    require_or_skip("nats", shared(line))
}

/// A static is never dropped: the server's guard ends it with this process.
fn own(line: Version) -> &'static Result<Nats> {
    static NEW: OnceLock<Result<Nats>> = OnceLock::new();
    static OLD: OnceLock<Result<Nats>> = OnceLock::new();
    let place = match line {
        Version::New => &NEW,
        Version::Old => &OLD,
    };
    place.get_or_init(|| Nats::start(line))
}
