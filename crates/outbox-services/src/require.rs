//! Skipping or failing when a service is absent; which of them, the ledger tells.

use crate::Result;
use crate::ledger::note;

/// Comma-separated services (`pg,amqp`) whose absence fails a test instead of skipping it.
pub const REQUIRE_VARIABLE: &str = "OUTBOX_TEST_REQUIRE";

/// Turns an absent service into a visible skip (`None`), or into a failure where [`REQUIRE_VARIABLE`] names it.
///
/// ```no_run
/// # use outbox_services::{postgres, require_or_skip};
/// let Some(db) = require_or_skip("pg", postgres::test_database("orders")) else { return };
/// ```
///
/// # Panics
/// When the service is absent and required.
pub fn require_or_skip<T>(service: &str, outcome: Result<T>) -> Option<T> {
    // Both test runners name the thread after the test.
    let test = std::thread::current().name().unwrap_or("unnamed").to_owned();
    note(&[service, if outcome.is_ok() { "used" } else { "skipped" }, &test]);
    decide(service, outcome, &std::env::var(REQUIRE_VARIABLE).unwrap_or_default())
}

fn decide<T>(service: &str, outcome: Result<T>, required: &str) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(error) => {
            let is_required = required.split(',').any(|name| name.trim() == service);
            assert!(!is_required, "{REQUIRE_VARIABLE} names `{service}`, but: {error}");
            println!("SKIPPED: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::decide;
    use crate::ServiceError;

    #[test]
    fn absent_and_not_required_is_none() {
        assert_eq!(decide::<()>("pg", Err(ServiceError::new("set X")), "amqp"), None);
    }

    #[test]
    #[should_panic(expected = "OUTBOX_TEST_REQUIRE names `pg`, but: set X")]
    fn absent_and_required_fails() {
        decide::<()>("pg", Err(ServiceError::new("set X")), "amqp, pg");
    }

    #[test]
    fn present_is_handed_through() {
        assert_eq!(decide("pg", Ok(7), "pg"), Some(7));
    }
}
