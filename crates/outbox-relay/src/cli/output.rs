//! Results on stdout.

use std::io::Write as _;

use serde::Serialize;

use super::args::Output;
use super::failure::Failure;

/// A result with many parts, in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Items<T> {
    pub(crate) items: Vec<T>,
}

/// Prints a result: its text, or its JSON on one line.
pub(crate) fn print(output: Output, text: &str, json: &impl Serialize) -> Result<(), Failure> {
    let line = match output {
        Output::Text if text.is_empty() || text.ends_with('\n') => text.to_owned(),
        Output::Text => format!("{text}\n"),
        Output::Json => {
            let json = serde_json::to_string(json).map_err(|error| Failure::failed(&error))?;
            format!("{json}\n")
        }
    };
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| Failure::Failed(format!("the result could not be written to stdout: {error}")))
}
