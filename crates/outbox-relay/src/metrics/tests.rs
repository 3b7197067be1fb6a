use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::families::{FAMILIES, Family, FamilyKind};
use super::histogram::Histogram;
use super::text::Text;
use super::{MAX_EVENT_TYPES, families};

fn file(path: &str) -> (PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (path, text)
}

/// What the name ends in says what is measured.
fn unit(family: &Family) -> &'static str {
    let name = family.name.strip_suffix("_total").unwrap_or(family.name);
    match name {
        _ if name.ends_with("_seconds") => "seconds",
        _ if name.ends_with("_transactions") => "transactions",
        "outbox_breaker_state" => "0, 1, 2",
        "outbox_events_pending_estimated" | "outbox_listener_up" | "outbox_config_standby" => "0, 1",
        _ if name.contains("aggregates") => "aggregates",
        _ if name.contains("topics") => "topics",
        _ if name.contains("buckets") => "buckets",
        "outbox_lease_losses" => "leases",
        "outbox_wakeups" => "reads",
        _ => "events",
    }
}

#[test]
fn the_page_lists_every_family() {
    let mut table = "| name | type | labels | unit | meaning |\n|---|---|---|---|---|\n".to_owned();
    for family in FAMILIES {
        let (labels, help) = (family.labels.join(", "), family.help);
        writeln!(table, "| `{}` | {} | {labels} | {} | {help} |", family.name, family.kind.as_str(), unit(family))
            .unwrap();
    }
    let (path, page) = file("docs/metrics.md");
    assert!(page.contains(&table), "put this table into {}:\n{table}", path.display());
    assert!(page.contains(&format!("{MAX_EVENT_TYPES} event types")), "the page tells the bound");
}

/// The names in a text that look like ours.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    words.filter(|word| word.starts_with("outbox_")).collect()
}

#[test]
fn alerts_ask_for_metrics_that_there_are() {
    let known: BTreeSet<String> = FAMILIES
        .iter()
        .flat_map(|family| match family.kind {
            FamilyKind::Histogram => ["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", family.name)).to_vec(),
            FamilyKind::Counter | FamilyKind::Gauge => vec![family.name.to_owned()],
        })
        .collect();
    for path in ["deploy/prometheus/alerts.yml", "deploy/prometheus/alerts_test.yml"] {
        let (path, text) = file(path);
        // Sentences for people name families; rules name samples.
        let rules: Vec<&str> = text.lines().filter(|line| !line.contains("description:")).collect();
        let rules = rules.join("\n");
        let asked = names(&rules);
        assert!(asked.len() > 5, "{}: {asked:?}", path.display());
        let unknown: Vec<_> = asked.iter().filter(|name| !known.contains(**name)).collect();
        assert!(unknown.is_empty(), "{} asks for {unknown:?}", path.display());
    }
}

#[test]
fn names_are_those_of_the_format() {
    let mut seen = BTreeSet::new();
    for family in FAMILIES {
        let legal =
            |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        assert!(legal(family.name) && family.labels.iter().all(|label| legal(label)), "{family:?}");
        assert!(seen.insert(family.name) && family.labels.first() == Some(&"route"), "{family:?}");
        assert_eq!(family.kind == FamilyKind::Counter, family.name.ends_with("_total"), "{family:?}");
        assert!(!family.help.contains(['\\', '\n', '|']), "{family:?}");
    }
}

#[test]
fn labels_are_escaped() {
    let mut text = Text::default();
    text.count(&families::FAILED, &["a\"b", "c\\d\ne}", "rejected"], 3);
    let expected = r#"outbox_events_failed_total{route="a\"b",event_type="c\\d\ne}",kind="rejected"} 3"#;
    assert_eq!(text.into_string().trim_end(), expected);
}

#[test]
fn buckets_are_cumulative() {
    let histogram = Histogram::default();
    for millis in [1, 3, 4_000, 100_000_000] {
        histogram.observe(std::time::Duration::from_millis(millis));
    }
    let mut text = Text::default();
    text.histogram(&families::READ, "r", &histogram.snapshot());
    let text = text.into_string();
    for line in [
        r#"outbox_read_duration_seconds_bucket{route="r",le="0.001"} 1"#,
        r#"outbox_read_duration_seconds_bucket{route="r",le="0.005"} 2"#,
        r#"outbox_read_duration_seconds_bucket{route="r",le="5"} 3"#,
        r#"outbox_read_duration_seconds_bucket{route="r",le="7200"} 3"#,
        r#"outbox_read_duration_seconds_bucket{route="r",le="+Inf"} 4"#,
        r#"outbox_read_duration_seconds_sum{route="r"} 100004.004"#,
        r#"outbox_read_duration_seconds_count{route="r"} 4"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}
