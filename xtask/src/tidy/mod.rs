//! `cargo xtask tidy`: the invariants that the compiler does not check. Each finding says where, what and the remedy.

mod dependencies;
mod migrations;
mod named_tests;
mod source;
mod sources;

use std::fmt;

use crate::Outcome;

/// One broken rule at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    /// A path below the workspace's root, with the line where there is one.
    place: String,
    problem: String,
    remedy: &'static str,
}

impl Finding {
    fn new(place: impl Into<String>, problem: impl Into<String>, remedy: &'static str) -> Self {
        Self { place: place.into(), problem: problem.into(), remedy }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} -> {}", self.place, self.problem, self.remedy)
    }
}

pub(crate) fn run(arguments: &[String]) -> Outcome {
    if !arguments.is_empty() {
        return Err("usage: cargo xtask tidy".to_owned());
    }
    let mut findings = Vec::new();
    dependencies::check(&mut findings)?;
    migrations::check(&mut findings)?;
    let seen = sources::check(&mut findings)?;
    if findings.is_empty() {
        println!("tidy: {seen} files and the dependencies of all crates are in order");
        return Ok(());
    }
    for finding in &findings {
        println!("{finding}");
    }
    Err(format!("tidy found {} problems", findings.len()))
}
