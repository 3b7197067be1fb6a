//! Why a command did not do what it was asked, and with which exit code that ends.

use std::error::Error;

use super::args::Output;
use super::settings::Problem;

/// The command failed.
pub(crate) const EXIT_FAILED: u8 = 1;
/// It was called wrongly, or the configuration can't be used.
pub(crate) const EXIT_USAGE: u8 = 2;

#[derive(Debug)]
pub(crate) enum Failure {
    /// Exit 2: everything that is wrong with the configuration.
    Config(Vec<Problem>),
    /// Exit 2: what is wrong with the call or its input.
    Usage(String),
    /// Exit 1: what went wrong, with its causes, on one line.
    Failed(String),
}

impl Failure {
    /// Exit 1, with all causes of an error.
    pub(crate) fn failed(error: &dyn Error) -> Self {
        Self::Failed(with_causes(error))
    }

    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Usage(_) => EXIT_USAGE,
            Self::Failed(_) => EXIT_FAILED,
        }
    }

    /// The text for stderr.
    pub(crate) fn render(&self, output: Output) -> String {
        if output == Output::Json {
            let value = match self {
                Self::Config(problems) => serde_json::json!({ "error": "config", "problems": problems }),
                Self::Usage(text) => serde_json::json!({ "error": "usage", "message": text }),
                Self::Failed(text) => serde_json::json!({ "error": "failed", "message": text }),
            };
            return format!("{value}\n");
        }
        match self {
            Self::Config(problems) => {
                let count = problems.len();
                let noun = if count == 1 { "problem" } else { "problems" };
                let lines: String = problems.iter().map(|problem| format!("  {problem}\n")).collect();
                format!("error: {count} {noun} in the configuration\n{lines}")
            }
            Self::Usage(text) | Self::Failed(text) => format!("error: {text}\n"),
        }
    }
}

/// An error and its causes; what an outer text already says is not repeated.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    text
}
