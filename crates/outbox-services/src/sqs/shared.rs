//! The emulator that all ordinary tests of a run share.

use std::sync::OnceLock;

use super::{Emulator, Sqs};
use crate::{Result, require_or_skip};

/// The endpoint of a running server that speaks SQS and takes any credentials, for example `http://127.0.0.1:4566`.
pub const URL_VARIABLE: &str = "OUTBOX_TEST_SQS_URL";

/// The endpoint of the shared emulator: [`URL_VARIABLE`], else a [`Emulator::Fauxqs`] started for this process at the
/// first call. Never stop or pause it.
///
/// # Errors
/// When the variable is not set and no emulator can be started here.
pub fn shared() -> Result<String> {
    std::env::var(URL_VARIABLE).or_else(|_| own().as_ref().map(Sqs::url).map_err(Clone::clone))
}

/// [`shared`] for a test that skips visibly without SQS, or fails where it is required.
pub fn shared_or_skip() -> Option<String> {
    require_or_skip("sqs", shared())
}

/// A static is never dropped: the emulator's guard ends it with this process.
fn own() -> &'static Result<Sqs> {
    static OWN: OnceLock<Result<Sqs>> = OnceLock::new();
    OWN.get_or_init(|| Sqs::start(Emulator::Fauxqs))
}
