//! End-to-end tests: relays, real servers, faults. Each test has a deadline; none waits for time to pass.

mod database;
mod deadline;
mod embedded;
mod load;
mod queue;
mod recorder;
mod relay;

mod kills;
mod late_commits;
mod order;
