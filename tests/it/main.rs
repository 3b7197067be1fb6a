//! End-to-end tests: relays, real servers, faults. Each test has a deadline; none waits for time to pass.
#![allow(clippy::unwrap_used, reason = "a test may fail, also in its helper functions")]

mod database;
mod deadline;
mod destination;
mod doorbell;
mod embedded;
mod load;
mod queue;
mod recorder;
mod relay;

mod atomicity;
mod bad_events;
mod chaos;
mod clocks;
mod database_faults;
mod embedding;
mod fail_over;
mod killers;
mod kills;
mod late_commits;
mod long_outages;
mod metrics;
mod missing_destinations;
mod names_and_ids;
mod order;
mod outages;
mod owners;
mod planted;
mod refusals;
mod retries;
mod routes;
mod shutdown;
mod silence;
mod standby;
mod start_on_backlog;
