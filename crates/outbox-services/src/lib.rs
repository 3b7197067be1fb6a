//! Private servers for tests, the demo and the task runner.
//!
//! Each launcher owns a child process on a free loopback port with a temporary directory. It is std only, so that
//! `xtask` compiles in seconds; `outbox-testkit` re-exports it as `services`. For development only: nothing here is
//! published or linked into a relay.
//!
//! Where a service comes from, in this order: an explicit URL ([`postgres::URL_VARIABLE`], [`rabbitmq::URL_VARIABLE`],
//! [`nats::URL_VARIABLE`], [`sqs::URL_VARIABLE`], [`kafka::URL_VARIABLE`]), binaries on this machine, a download
//! without root made by `cargo xtask services up` ([`install`]).
//!
//! A server ends with its launcher's `Drop`; should the whole process be killed, its [`process::Guard`] ends it.

pub mod install;
pub mod kafka;
mod ledger;
pub mod nats;
pub mod postgres;
pub mod process;
pub mod rabbitmq;
mod require;
pub mod sqs;

pub use ledger::{CHECK, LEDGER_VARIABLE, note_check};
pub use require::{REQUIRE_VARIABLE, require_or_skip};

/// Why a service could not be had; the text says what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceError {
    text: String,
}

impl ServiceError {
    /// An error with a text that stands alone: what failed, and what the reader can do.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }

    /// Puts what was being done in front of an underlying failure.
    pub(crate) fn while_doing(what: &str, cause: impl std::fmt::Display) -> Self {
        Self::new(format!("{what}: {cause}"))
    }
}

impl std::fmt::Display for ServiceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ServiceError {}

/// What every function of this crate returns.
pub type Result<T> = std::result::Result<T, ServiceError>;
