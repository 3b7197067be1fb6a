//! The relay as a program; everything is in the library, so that other binaries can be made of the same parts.

use std::process::ExitCode;

fn main() -> ExitCode {
    outbox_relay::cli::main()
}
