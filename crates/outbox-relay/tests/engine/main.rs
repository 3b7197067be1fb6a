//! The engine over a store and a publisher in memory, under paused time: every wait is virtual.

mod backlog;
mod blocking;
mod crashes;
mod database;
mod delivery;
mod flapping;
mod killers;
mod liveness;
mod log_lines;
mod metrics;
mod ownership;
mod poison;
mod readiness;
mod refused;
mod retries;
mod rig;
mod routes;
mod shares;
mod slowdowns;
mod stopping;
mod unconfirmed;
