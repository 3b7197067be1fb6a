//! Runs the binary with a clean environment and an empty working directory.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// What a finished command left behind.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// The JSON value on stdout.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A command in `directory` with nothing in its environment but `env`.
pub(crate) fn command(directory: &Path, args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox-relay"));
    command.args(args).current_dir(directory).env_clear().envs(env.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end with `input` as stdin.
pub(crate) fn relay(directory: &Path, args: &[&str], env: &[(&str, &str)], input: &str) -> Finished {
    let mut child = command(directory, args, env).spawn().unwrap();
    // A command that refuses its arguments does not read; its exit code tells.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
