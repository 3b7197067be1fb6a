//! Tests of `outbox-pg` against a real server, each in a database of its own.
#![allow(clippy::unwrap_used, reason = "a test may fail, also in its helper functions")]

mod atomicity;
mod blocked;
mod bulk;
mod check;
mod database;
mod encodings;
mod ids;
mod lane;
mod late_commits;
mod migrations;
mod odd_rows;
mod payloads;
mod plans;
mod plans_matching;
mod races;
mod refusals;
mod resets;
mod roles;
mod routes;
mod schema_names;
mod status;
mod store_contract;
