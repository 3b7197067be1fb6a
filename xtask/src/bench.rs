//! `cargo xtask bench`: the benchmark of `docs/performance.md`, optimized, against a server of its own.

use crate::Outcome;
use crate::cargo::{cargo, must};

pub(crate) fn run(arguments: &[String]) -> Outcome {
    println!("== build, optimized (ten minutes the first time)");
    must(&mut cargo(&["build", "--release", "-p", "outbox-tests", "--bin", "bench"]))?;
    println!("== benchmark");
    must(cargo(&["run", "--quiet", "--release", "-p", "outbox-tests", "--bin", "bench", "--"]).args(arguments))
}
