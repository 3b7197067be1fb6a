//! Where Tansu is on this machine.

use std::path::PathBuf;

use super::URL_VARIABLE;
use crate::{Result, ServiceError, install};

/// The program `tansu`, to use before any other.
pub const BIN_VARIABLE: &str = "OUTBOX_TEST_TANSU_BIN";

/// Looks, in this order, at [`BIN_VARIABLE`], the `PATH` and what `cargo xtask services up` has downloaded.
///
/// # Errors
/// When there is none.
pub fn find() -> Result<PathBuf> {
    let named = std::env::var_os(BIN_VARIABLE).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|dir| dir.join("tansu"));
    let found = named.into_iter().chain(on_path).chain([install::downloaded_kafka()]).find(|file| file.is_file());
    found.ok_or_else(|| {
        ServiceError::new(format!(
            "no Kafka broker here: set {URL_VARIABLE} to a running broker, or run `cargo xtask services up`"
        ))
    })
}
