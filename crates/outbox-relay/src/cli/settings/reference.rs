//! The reference page of the configuration, written from the table of keys; a test compares it with the file.

use std::fmt::Write as _;

use super::key_table;
use super::keys::{Default, Key, Kind, Place};
use super::path::Path;
use crate::cli::brokers;

const HEAD: &str = include_str!("reference_head.md");

const TABLES: &[(&str, &str)] = &[
    ("database", "The database that holds the outbox."),
    (
        "relay",
        "The relay. Keys marked * can also stand in `[[route]]`, where they win over `[relay]` wherever that is set.",
    ),
    ("history", "Published events."),
    ("admin", "Probes."),
    ("log", "Logs, on stderr. Payloads and credentials are never logged."),
    (
        "route",
        "Where events go: up to 32 routes in their order, each with exactly one of the brokers' tables below. An event goes to the first route that matches it, and to no other.",
    ),
    (
        "route.match",
        "Which events the route takes of those that no earlier one does, for example `match = { aggregate_type = [\"order\"], event_type = [\"order.*\"] }`. Without it: all. What no route takes stays in the outbox; `/readyz` and the log tell of it.",
    ),
];

/// All tables with what they are about, those of the brokers last.
fn tables() -> Vec<(String, &'static str)> {
    let own = TABLES.iter().map(|(table, about)| ((*table).to_owned(), *about));
    own.chain(brokers::ALL.iter().map(|broker| (format!("route.{}", broker.name), broker.about))).collect()
}

/// The page.
fn page() -> String {
    let mut page = HEAD.to_owned();
    for (table, about) in tables() {
        let title = if table == "route" { "[[route]]".to_owned() } else { format!("[{table}]") };
        let _ = write!(page, "\n## `{title}`\n\n{about}\n"); // writing to a String can't fail
        let own = |key: &Key| match key.place {
            Place::Table(place) => place == table,
            Place::RelayOrRoute => table == "relay",
        };
        let mut keys = key_table::all().filter(|key| own(key)).peekable();
        if keys.peek().is_some() {
            page.push_str("\n| key | value | default | meaning |\n|---|---|---|---|\n");
        }
        for key in keys {
            let star = if key.place == Place::RelayOrRoute { " *" } else { "" };
            let file = if key.is_secret() { format!(", `{}_file`", key.name) } else { String::new() };
            let _ = writeln!(page, "| `{}`{file}{star} | {} | {} | {} |", key.name, kind(key), default(key), key.doc);
        }
    }
    page
}

fn kind(key: &Key) -> String {
    match key.kind {
        Kind::Text => "text".to_owned(),
        Kind::SecretUrl => "URL, hidden".to_owned(),
        Kind::Secret => "text, hidden".to_owned(),
        Kind::Switch => "`true` or `false`".to_owned(),
        Kind::Path => "path".to_owned(),
        Kind::Number => "number".to_owned(),
        Kind::Choice(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "),
        Kind::Loopback => "address or `off`".to_owned(),
        Kind::Duration => "duration".to_owned(),
        Kind::Size => "size".to_owned(),
        Kind::Patterns => "list of patterns".to_owned(),
    }
}

fn default(key: &Key) -> String {
    match key.default {
        Default::Required(_) => "required".to_owned(),
        Default::Absent(meaning) | Default::Depends(_, meaning) => meaning.to_owned(),
        Default::Is(_) | Default::Of(_) => key.default_text().map(|text| format!("`{text}`")).unwrap_or_default(),
    }
}

#[test]
fn the_page_in_docs_is_what_the_table_of_keys_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == page, "docs/configuration.md is out of date: run this test once with UPDATE_DOCS=1");
}

#[test]
fn every_table_of_a_key_has_a_section() {
    for path in key_table::all().flat_map(Key::paths) {
        let table = path.rsplit_once('.').unwrap().0;
        assert!(tables().iter().any(|(known, _)| *known == table), "{path}");
        assert!(Path::parse(&path).variable().starts_with("OUTBOX__"));
    }
}
