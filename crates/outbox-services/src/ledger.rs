//! The file in which tests note what they did; `cargo xtask test` reads it.

use std::io::Write;

/// A file to which each test appends the services that it used or skipped, and each check of a conformance suite its
/// result; `cargo xtask test` counts and prints the lines.
pub const LEDGER_VARIABLE: &str = "OUTBOX_TEST_LEDGER";

/// The first field of the lines that [`note_check`] writes; those about services begin with the service.
pub const CHECK: &str = "check";

/// Notes the result of a check: the package and the variant that it judged, what came out, and what was not looked at.
///
/// # Panics
/// When [`LEDGER_VARIABLE`] names a file that can't be written.
pub fn note_check(package: &str, variant: &str, check: &str, result: &str, remarks: &[String]) {
    note(&[CHECK, package, variant, check, result, &remarks.join("; ")]);
}

/// Appends one line to the ledger, if there is one.
pub(crate) fn note(fields: &[&str]) {
    let Some(path) = std::env::var_os(LEDGER_VARIABLE) else { return };
    let line = format!("{}\n", fields.join("\t"));
    let written = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        panic!("{LEDGER_VARIABLE} is set to {}, which can't be written: {error}", path.display());
    }
}
