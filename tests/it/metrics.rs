//! `/metrics` of a real relay: it parses, tells what happened, holds nothing of the events, and answers at once also when
//! the database is gone. Alert rules are tried with Prometheus' own tool.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use outbox_testkit::services::{install, postgres, require_or_skip};
use tokio::task::block_in_place;
use tokio::time::Instant;

use crate::database::{Database, run};
use crate::deadline::{seconds, until, within};
use crate::destination::{Destination as _, WebhookEndpoint};
use crate::relay::{Relay, RelayConfig};

/// Samples by name and labels.
type Samples = BTreeMap<(String, Vec<(String, String)>), f64>;

/// Takes the text apart, strictly: what it does not understand is wrong.
fn parse(text: &str) -> Samples {
    assert!(text.ends_with('\n'));
    let (mut samples, mut family, mut kind, mut known) = (Samples::new(), "", "", Vec::new());
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split_once(' ').expect("a help text").0;
            assert!(!known.contains(&family), "{family} comes in two places");
            known.push(family);
            kind = "";
        } else if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, told) = typed.split_once(' ').expect("a type");
            assert!(name == family && ["counter", "gauge", "histogram"].contains(&told), "{line}");
            kind = told;
        } else {
            let (name, labels, value) = sample(line);
            let end = name.strip_prefix(family).unwrap_or_else(|| panic!("{line} stands under {family}"));
            let ends: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(!kind.is_empty() && ends.contains(&end), "{line} is no {kind}");
            assert!(value.is_finite() && value >= 0.0, "{line}");
            assert!(samples.insert((name, labels), value).is_none(), "twice: {line}");
        }
    }
    samples
}

fn sample(line: &str) -> (String, Vec<(String, String)>, f64) {
    let (name, mut rest) = line.split_once('{').unwrap_or_else(|| panic!("no labels: {line}"));
    assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line}");
    let mut labels = Vec::new();
    loop {
        let (label, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("no label: {line}"));
        let (mut text, mut characters) = (String::new(), value.char_indices());
        let end = loop {
            match characters.next().unwrap_or_else(|| panic!("an open quote: {line}")) {
                (at, '"') => break at,
                (_, '\\') => match characters.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, plain @ ('\\' | '"'))) => text.push(plain),
                    other => panic!("{other:?} after a backslash: {line}"),
                },
                (_, plain) => text.push(plain),
            }
        };
        labels.push((label.to_owned(), text));
        rest = &value[end + 1..];
        match rest.split_at(1) {
            (",", more) => rest = more,
            ("}", more) => break rest = more,
            _ => panic!("neither a comma nor the end after a label: {line}"),
        }
    }
    let number = rest.strip_prefix(' ').unwrap_or_else(|| panic!("no value: {line}"));
    (name.to_owned(), labels, number.parse().unwrap())
}

fn value(samples: &Samples, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let labels = labels.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect();
    samples.get(&(name.to_owned(), labels)).copied()
}

/// The sample of the whole outbox.
fn of_all(samples: &Samples, name: &str) -> Option<f64> {
    value(samples, name, &[("route", "*")])
}

async fn scrape(relay: &Relay) -> String {
    let begun = Instant::now();
    let text = relay.scrape().await;
    assert!(begun.elapsed() < seconds(1), "{:?}", begun.elapsed());
    text
}

/// 300 aggregates; each tenth event's payload is more than the endpoint is sent. Its type has its own name.
const EVENTS: &str = "
    INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload, headers)
    SELECT 'order', 'id-planted-' || n,
           CASE WHEN n % 10 = 0 THEN 'large \"one\" \\' || n ELSE 'order.placed' END,
           to_json(CASE WHEN n % 10 = 0 THEN repeat('payload-planted', 6000) ELSE 'payload-planted' END),
           '{\"secret\": \"header-planted\"}'
      FROM generate_series(1, 3000) AS n";

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_tells_what_happened_and_needs_no_database() {
    let Some(mut db) = Database::own().await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(150), async {
        let mut endpoint = WebhookEndpoint::own().await;
        endpoint.make().await;
        let config = endpoint.lead(config).with("route.0.webhook.max_message_bytes", "64KiB");
        let config = config.with("route.0.webhook.authorization", "config-planted").with("route.0.name", "to \"all\"");
        let relay = config.start().await;
        relay.wait_owner(seconds(20)).await;
        run(&mut db.connect().await, EVENTS).await;
        until(seconds(60), "the outbox is empty", || async { db.count("events").await == 0 }).await;

        let route = ("route", "to \"all\"");
        let of_route = |samples: &Samples, name: &str| value(samples, name, &[route]);
        let mut last = String::new();
        until(seconds(40), "the database was asked after all was done", async || {
            last = scrape(&relay).await;
            let samples = parse(&last);
            of_all(&samples, "outbox_dead_letters") == Some(300.0)
                && of_all(&samples, "outbox_events_pending") == Some(0.0)
        })
        .await;
        let samples = parse(&last);
        assert_eq!(of_route(&samples, "outbox_events_published_total"), Some(2700.0));
        assert_eq!(of_route(&samples, "outbox_delivery_latency_seconds_count"), Some(2700.0));
        let dead = |kind| value(&samples, "outbox_dead_letters_total", &[route, ("kind", kind)]);
        assert_eq!((dead("rejected"), dead("failed")), (Some(300.0), Some(0.0)));
        let failed = samples.iter().filter(|((name, _), _)| name == "outbox_events_failed_total");
        let (types, failures) = failed.fold((0, 0.0), |(types, sum), (_, value)| (types + 1, sum + value));
        assert_eq!((types, failures), (101, 300.0), "a hundred event types and all others");
        for (gauge, expected) in [
            ("outbox_events_pending_estimated", 0.0),
            ("outbox_oldest_pending_age_seconds", 0.0),
            ("outbox_retries_waiting", 0.0),
            ("outbox_blocked_aggregates", 0.0),
            ("outbox_unrouted_oldest_age_seconds", 0.0),
            ("outbox_listener_up", 1.0),
        ] {
            assert_eq!(of_all(&samples, gauge), Some(expected), "{gauge}");
        }
        assert!(of_all(&samples, "outbox_oldest_writer_age_seconds").is_some_and(|age| age < 5.0));
        assert!(of_all(&samples, "outbox_oldest_xmin_age_transactions").is_some());
        assert_eq!(of_route(&samples, "outbox_buckets_owned"), Some(64.0));
        assert_eq!(of_route(&samples, "outbox_breaker_state"), Some(0.0));
        assert!(samples.len() < 300, "{}", samples.len());
        for planted in ["planted", "whsec_", "postgres://"] {
            assert!(!last.contains(planted), "{planted} in {last}");
        }
        checked_by_promtool(&last);

        block_in_place(|| db.server().stop(postgres::Mode::Fast)).unwrap();
        until(seconds(40), "what can't be asked is left out", async || {
            last = scrape(&relay).await;
            let samples = parse(&last);
            let left_out = ["outbox_events_pending", "outbox_dead_letters", "outbox_oldest_xmin_age_transactions"];
            left_out.into_iter().all(|name| of_all(&samples, name).is_none())
                && of_all(&samples, "outbox_listener_up") == Some(0.0)
        })
        .await;
        assert_eq!(of_route(&parse(&last), "outbox_events_published_total"), Some(2700.0));
    })
    .await;
}

/// One event waits for an hour already, and the transaction that writes another stays open.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_no_route_takes_and_an_open_writer_show() {
    let Some(db) = Database::shared("metrics_gauges").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(90), async {
        let mut endpoint = WebhookEndpoint::own().await;
        endpoint.make().await;
        let config = endpoint.lead(config).with("route.0.match.aggregate_type", "cart");
        let insert = "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload, created_at)
                      VALUES ('order', '1', 'order.placed', '1', now() - interval '1 hour')";
        run(&mut db.connect().await, insert).await;
        let mut writer = db.connect().await;
        run(&mut writer, "BEGIN").await;
        run(&mut writer, insert).await;
        let relay = config.start().await;
        until(seconds(60), "the gauges tell of both", || async {
            let samples = parse(&scrape(&relay).await);
            of_all(&samples, "outbox_unrouted_oldest_age_seconds") >= Some(3600.0)
                && of_all(&samples, "outbox_oldest_pending_age_seconds") >= Some(3600.0)
                && of_all(&samples, "outbox_events_pending") == Some(1.0)
                && of_all(&samples, "outbox_oldest_writer_age_seconds") > Some(0.0)
        })
        .await;
        run(&mut writer, "COMMIT").await;
        assert_eq!(relay.stop().await, Some(0));
    })
    .await;
}

fn promtool() -> Option<Command> {
    let found = block_in_place(|| install::promtool(&|line| println!("{line}")));
    require_or_skip("promtool", found).map(Command::new)
}

/// Beside the parser above, that of Prometheus.
fn checked_by_promtool(text: &str) {
    let Some(mut tool) = promtool() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let input = Stdio::from(std::fs::File::open(file.path()).unwrap());
    let output = tool.args(["check", "metrics"]).stdin(input).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn alert_rules_fire_when_they_should_and_not_else() {
    let Some(mut tool) = promtool() else { return };
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus");
    let output = tool.args(["test", "rules", "alerts_test.yml"]).current_dir(&rules).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("SUCCESS"), "{output:?}");
}
