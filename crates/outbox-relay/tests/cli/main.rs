//! The binary as its users see it: arguments, files, variables, output and exit codes.

#![allow(clippy::unwrap_used, reason = "tests; the lint spares only functions marked as such")]

mod binary;
mod commands;
mod help;
mod run;
mod usage;
