//! Waiting for a condition, with an end.

use std::time::Duration;

use tokio::time::{Instant, interval, sleep_until, timeout};

/// How often a condition is looked at that can't be waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Looks until it is so.
///
/// # Panics
/// After `limit`, with what was waited for.
#[track_caller]
pub(crate) fn until(limit: Duration, what: &str, mut so: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        let mut look = interval(LOOK_AGAIN);
        let looked = async {
            while !so().await {
                look.tick().await;
            }
        };
        let in_time = timeout(limit, looked).await.is_ok();
        assert!(in_time, "{place}: not within {limit:?}: {what}");
    }
}

/// Lets time pass where it is the time itself that is wanted: how long a fault lasts, how long a producer pauses.
pub(crate) async fn pass(length: Duration) {
    sleep_until(Instant::now() + length).await;
}

/// Bounds a whole test.
///
/// # Panics
/// After `limit`.
pub(crate) async fn within<T>(limit: Duration, test: impl Future<Output = T>) -> T {
    let done = timeout(limit, Box::pin(test)).await;
    done.unwrap_or_else(|_| panic!("the test did not end within {limit:?}"))
}

/// Whole seconds.
pub(crate) const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Whether the long form of the tests was asked for (`cargo xtask ci --full`).
pub(crate) fn is_full() -> bool {
    std::env::var_os("OUTBOX_TEST_FULL").is_some()
}
