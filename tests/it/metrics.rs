//! What a scrape of the binary says, and the alert rules over it, judged by Prometheus' own tool.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use outbox_testkit::services::{install, require_or_skip};
use tokio::task::block_in_place;
use uuid::Uuid;

use crate::database::Database;
use crate::deadline::{seconds, until, within};
use crate::load::event;
use crate::relay::RelayConfig;

/// A check by promtool of what comes on its standard input. Its findings, empty when there are none.
fn promtool(arguments: &[&str], input: &str) -> Option<String> {
    let tool = block_in_place(|| require_or_skip("promtool", install::promtool(&|step| println!("{step}"))))?;
    let mut child = Command::new(tool)
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = [ended.stdout, ended.stderr].concat();
    Some(if ended.status.success() { String::new() } else { String::from_utf8_lossy(&said).into_owned() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_says_what_happened_and_nothing_secret() {
    let Some(db) = Database::shared("metrics").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(90), async {
        let relay = config.with("route.0.stdout", "{}").start().await;
        relay.wait_owner(seconds(20)).await;
        let mut conn = db.connect().await;
        let secret = Uuid::now_v7();
        for version in 0..7 {
            let id = if version == 0 { secret } else { Uuid::now_v7() };
            outbox_pg::Outbox::default()
                .enqueue(&mut conn, &event(id, "planted-aggregate", 4_711_000 + version))
                .await
                .unwrap();
        }
        let published = r#"outbox_events_published_total{route="default"} 7"#;
        let asked = r#"outbox_dead_letters{route="*"} 0"#;
        until(seconds(40), "the scrape tells of all", || async {
            let scrape = relay.scrape().await;
            scrape.lines().any(|line| line == published) && scrape.lines().any(|line| line == asked)
        })
        .await;
        let scrape = relay.scrape().await;
        for hidden in [&secret.to_string(), "planted-aggregate", "4711", "postgres://"] {
            assert!(!scrape.contains(hidden), "{hidden} is in\n{scrape}");
        }
        assert!(scrape.contains(r#"outbox_listener_up{route="*"} 1"#), "{scrape}");
        if let Some(findings) = promtool(&["check", "metrics"], &scrape) {
            assert_eq!(findings, "", "of\n{scrape}");
        }
        assert_eq!(relay.stop().await, Some(0));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_alert_rules_fire_when_they_should() {
    for arguments in [&["check", "rules", "alerts.yml"][..], &["test", "rules", "alerts_test.yml"]] {
        if let Some(findings) = promtool(arguments, "") {
            assert_eq!(findings, "", "{arguments:?}");
        }
    }
}
