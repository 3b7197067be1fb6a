//! `status`: what the outbox holds and who works on it.

use std::fmt::Write as _;
use std::time::Duration;

use outbox_pg::status::{Count, RouteOwner, Status};
use serde::Serialize;

use super::args::Output;
use super::failure::Failure;
use super::output::print;
use super::settings::Settings;

#[derive(Debug, Serialize)]
struct Report {
    schema: String,
    pending: CountReport,
    oldest_pending_age_seconds: Option<f64>,
    retrying: CountReport,
    blocked: CountReport,
    dead_letters: CountReport,
    owners: Vec<OwnerReport>,
}

#[derive(Debug, Serialize)]
struct CountReport {
    rows: u64,
    /// `false`: beyond the limit up to which rows are counted; then an estimate or a lower bound.
    exact: bool,
}

#[derive(Debug, Serialize)]
struct OwnerReport {
    route: String,
    relay: Option<String>,
    relay_id: Option<String>,
    version: Option<String>,
    buckets: u64,
    lease_left_seconds: Option<f64>,
    deaths: u32,
}

pub(crate) async fn status(settings: &Settings, output: Output) -> Result<(), Failure> {
    let mut connection = super::database::connect(settings).await?;
    let schema = &settings.database.schema;
    let asked =
        async { outbox_pg::status::status(&mut connection, schema).await.map_err(|error| Failure::failed(&error)) };
    let status = super::database::answer(asked).await?;
    let report = Report::new(schema.as_str(), &status);
    print(output, &report.text(), &report)
}

impl Report {
    fn new(schema: &str, status: &Status) -> Self {
        Self {
            schema: schema.to_owned(),
            pending: status.pending.count.into(),
            oldest_pending_age_seconds: status.pending.oldest_age.as_ref().map(Duration::as_secs_f64),
            retrying: status.retries.into(),
            blocked: status.blocked.into(),
            dead_letters: status.dead_letters.into(),
            owners: status.owners.iter().map(OwnerReport::from).collect(),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<16}{value}"); // writing to a String can't fail
        };
        let oldest = self.oldest_pending_age_seconds.map(|age| format!(", oldest {age:.1} s")).unwrap_or_default();
        line("schema", self.schema.clone());
        line("pending", format!("{}{oldest}", self.pending.text()));
        line("retrying", self.retrying.text());
        line("blocked", self.blocked.text());
        line("dead letters", self.dead_letters.text());
        if self.owners.is_empty() {
            line("routes", "none has run yet".to_owned());
        }
        for owner in &self.owners {
            line("route", owner.text());
        }
        text
    }
}

impl CountReport {
    fn text(&self) -> String {
        if self.exact { self.rows.to_string() } else { format!("about {} or more", self.rows) }
    }
}

impl From<Count> for CountReport {
    fn from(count: Count) -> Self {
        Self { rows: count.rows, exact: count.exact }
    }
}

impl OwnerReport {
    fn text(&self) -> String {
        let Self { route, buckets, .. } = self;
        let Some(relay_id) = &self.relay_id else { return format!("{route}: {buckets} buckets without an owner") };
        let relay = self.relay.as_deref().unwrap_or("unknown relay");
        let lease = match self.lease_left_seconds {
            Some(left) if left > 0.0 => format!("lease ends in {left:.1} s"),
            Some(_) => "lease has ended".to_owned(),
            None => "its row is gone".to_owned(),
        };
        format!("{route}: {buckets} buckets owned by {relay} ({relay_id}), {lease}")
    }
}

impl From<&RouteOwner> for OwnerReport {
    fn from(owner: &RouteOwner) -> Self {
        Self {
            route: owner.route.clone(),
            relay: owner.name.clone(),
            relay_id: owner.owner.map(|id| id.to_string()),
            version: owner.version.clone(),
            buckets: owner.buckets,
            lease_left_seconds: owner.lease_left.as_ref().map(Duration::as_secs_f64),
            deaths: owner.deaths,
        }
    }
}
