//! What a refusal of the database means to a relay. One pure function.

use std::error::Error;
use std::fmt;

use outbox_core::{StoreError, StoreErrorKind};

/// A driver's error that shows no more in `Debug` than in `Display`: its details can hold rows, and with them payloads
/// ("Failing row contains …").
pub(crate) struct Refusal(pub(crate) sqlx::Error);

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Error for Refusal {
    /// None: the text of a refusal's own source is its own.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0 {
            sqlx::Error::Database(_) => None,
            other => other.source(),
        }
    }
}

/// Wraps a driver's error.
pub(crate) fn store_error(doing: &str, error: sqlx::Error) -> StoreError {
    let (kind, remedy) = match &error {
        sqlx::Error::Database(refusal) => classify(refusal.code().as_deref().unwrap_or_default()),
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
            (StoreErrorKind::Unavailable, "")
        }
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnNotFound(_) => {
            (StoreErrorKind::Unprepared, "the tables are not those of this version; run `outbox-relay migrate up`")
        }
        _ => (StoreErrorKind::Failed, ""),
    };
    let detail = match remedy {
        "" => format!("{doing} failed"),
        remedy => format!("{doing} failed ({remedy})"),
    };
    StoreError::new(kind, detail).with_source(Refusal(error))
}

/// The meaning of an SQLSTATE, with what to do about it where an operator must.
fn classify(state: &str) -> (StoreErrorKind, &'static str) {
    match state {
        "42P01" | "3F000" | "42703" | "42883" => {
            (StoreErrorKind::Unprepared, "the outbox's tables are missing or too old; run `outbox-relay migrate up`")
        }
        "42501" => {
            (StoreErrorKind::Unprepared, "the relay's role lacks a right; see `outbox-relay migrate sql --roles`")
        }
        "3D000" => (StoreErrorKind::Unprepared, "the database does not exist"),
        "25006" => (
            StoreErrorKind::Unavailable,
            "the database is read-only: a relay needs the primary, and default_transaction_read_only off",
        ),
        "57014" => (StoreErrorKind::Unavailable, "a statement_timeout or a cancel ended the statement"),
        _ if state.starts_with("28") => (StoreErrorKind::Unprepared, "check the user and password of database.url"),
        // Connection, resources, operator intervention, deadlock, serialization, lock timeout.
        _ if ["08", "53", "57", "58", "40", "55"].iter().any(|class| state.starts_with(class)) => {
            (StoreErrorKind::Unavailable, "")
        }
        _ => (StoreErrorKind::Failed, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_a_kind() {
        let check = |state: &str, kind| assert_eq!(classify(state).0, kind, "{state}");
        check("57P01", StoreErrorKind::Unavailable); // admin_shutdown
        check("57P03", StoreErrorKind::Unavailable); // cannot_connect_now
        check("53300", StoreErrorKind::Unavailable); // too_many_connections
        check("40P01", StoreErrorKind::Unavailable); // deadlock_detected
        check("25006", StoreErrorKind::Unavailable); // read_only_sql_transaction
        check("57014", StoreErrorKind::Unavailable); // query_canceled
        check("42P01", StoreErrorKind::Unprepared); // undefined_table
        check("42501", StoreErrorKind::Unprepared); // insufficient_privilege
        check("28P01", StoreErrorKind::Unprepared); // invalid_password
        check("22003", StoreErrorKind::Failed); // numeric_value_out_of_range
    }
}
