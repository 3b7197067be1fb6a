//! `check`: is the configuration right, and with `--connect`, could a relay run?

use outbox_core::{ErrorKind, Publisher, Routes};
use outbox_pg::check::{Facts, Finding, Severity, facts};
use serde::Serialize;

use super::args::Output;
use super::brokers::State;
use super::failure::{Failure, with_causes};
use super::output::print;
use super::settings::{RouteSettings, Settings, Shown, Wakeup, joined};

/// Routes that one warning names.
const MOST_NAMES: usize = 5;

#[derive(Debug, Default, Serialize)]
struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<Vec<Shown>>,
    findings: Vec<Item>,
}

#[derive(Debug, Serialize)]
struct Item {
    about: &'static str,
    severity: &'static str,
    text: String,
}

impl Item {
    const fn new(about: &'static str, severity: &'static str, text: String) -> Self {
        Self { about, severity, text }
    }
}

pub(crate) async fn check(settings: &Settings, connect: bool, show: bool, output: Output) -> Result<(), Failure> {
    let mut report = Report { config: show.then(|| settings.shown.clone()), findings: Vec::new() };
    // Made also without --connect: they check their own part of the configuration.
    let publishers = super::brokers::connect(&settings.routes)?;
    report.findings.push(Item::new("config", "ok", "the configuration is valid".to_owned()));
    report.splits(settings);
    if connect {
        report.database(settings).await;
        for (route, publisher) in settings.routes.iter().zip(&publishers) {
            report.broker(route, publisher.as_ref()).await;
        }
    }
    for publisher in publishers {
        publisher.close().await;
    }
    print(output, &report.text(), &report)?;
    let errors = report.findings.iter().filter(|item| item.severity == "error").count();
    match errors {
        0 => Ok(()),
        1 => Err(Failure::Failed("1 check failed".to_owned())),
        _ => Err(Failure::Failed(format!("{errors} checks failed"))),
    }
}

impl Report {
    /// Events of one aggregate that go to different routes are not ordered against each other.
    fn splits(&mut self, settings: &Settings) {
        let names = settings.routes.iter().map(|route| (&route.config.name, route.config.filter.clone()));
        let Ok(routes) = Routes::new(names) else { return }; // the configuration was checked before
        let name = |place: usize| routes.iter().nth(place).map(|(name, _)| name).unwrap_or_default();
        for same_first in routes.splits().chunk_by(|one, other| one.0 == other.0) {
            let Some((first, _)) = same_first.first() else { continue };
            let mut others: Vec<String> = same_first.iter().map(|(_, second)| format!("`{}`", name(*second))).collect();
            if others.len() > MOST_NAMES {
                let more = others.split_off(MOST_NAMES).len();
                others.push(format!("{more} more"));
            }
            let text = format!(
                "routes `{}` and {} may divide the events of one aggregate by their types: those are not ordered \
                 against each other; match by aggregate_type alone to keep them in order",
                name(*first),
                joined(&others)
            );
            self.findings.push(Item::new("config", "warning", text));
        }
    }

    async fn database(&mut self, settings: &Settings) {
        let mut connection = match super::database::connect(settings).await {
            Ok(connection) => connection,
            Err(Failure::Failed(text) | Failure::Usage(text)) => {
                return self.findings.push(Item::new("database", "error", text));
            }
            Err(Failure::Config(_)) => return, // the configuration was checked before
        };
        let schema = &settings.database.schema;
        let asked = async { Ok(facts(&mut connection, schema).await.map_err(|error| with_causes(&error))) };
        match super::database::answer(asked).await {
            Ok(Ok(facts)) => {
                self.facts(&facts);
                self.doorbell(settings, &facts);
            }
            Ok(Err(text)) | Err(Failure::Failed(text) | Failure::Usage(text)) => {
                self.findings.push(Item::new("database", "error", text));
            }
            Err(Failure::Config(_)) => {} // no question ends so
        }
    }

    fn facts(&mut self, facts: &Facts) {
        let Facts { server_major, database, schema, role, .. } = facts;
        let text = format!("PostgreSQL {server_major}, database {database}, schema {schema}, role {role}");
        self.findings.push(Item::new("database", "ok", text));
        for Finding { severity, text } in facts.findings() {
            let severity = match severity {
                Severity::Warning => "warning",
                Severity::Error => "error",
            };
            self.findings.push(Item::new("database", severity, text));
        }
    }

    /// The trigger and the configuration must agree.
    fn doorbell(&mut self, settings: &Settings, facts: &Facts) {
        let Some(table) = &facts.table else { return }; // told already
        let text = match (settings.wakeup, table.has_doorbell) {
            (Wakeup::Doorbell { .. }, false) => {
                "relay.wakeup is \"doorbell\", but the trigger that rings is missing or disabled, so an idle relay polls: \
                 run `migrate up`, or set relay.wakeup = \"poll\""
            }
            (Wakeup::Poll, true) => {
                "relay.wakeup is \"poll\", but producers still run the trigger that rings: run `migrate up \
                 --no-doorbell` if no other relay wants it"
            }
            _ => return,
        };
        self.findings.push(Item::new("database", "warning", text.to_owned()));
    }

    async fn broker(&mut self, settings: &RouteSettings, publisher: &dyn Publisher) {
        let route = &settings.config.name;
        let checked = match (publisher.check().await, settings.broker.state()) {
            (Ok(()), State::Here { examine: Some(examine), .. }) => examine(&settings.broker, settings).await,
            (checked, _) => checked,
        };
        let item = match checked {
            Ok(()) => Item::new("broker", "ok", format!("route `{route}`: the destination can be reached")),
            Err(error) if error.kind() == ErrorKind::Throttled => {
                Item::new("broker", "warning", format!("route `{route}`: {}", error.report()))
            }
            Err(error) => {
                Item::new("broker", "error", format!("route `{route}`: {}: {}", error.kind(), error.report()))
            }
        };
        self.findings.push(item);
    }

    fn text(&self) -> String {
        let shown = self.config.iter().flatten();
        let shown = shown.map(|Shown { key, value, origin }| format!("{key} = {value}  # {origin}\n"));
        let findings = self.findings.iter().map(|item| format!("{}: {}: {}\n", item.about, item.severity, item.text));
        shown.chain(findings).collect()
    }
}
