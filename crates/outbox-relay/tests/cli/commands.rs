//! The commands against a real database.

use outbox_testkit::services::postgres::test_database_or_skip;

use crate::binary::relay;

#[test]
fn migrate_enqueue_status_check() {
    let Some(db) = test_database_or_skip("cli_commands") else { return };
    let directory = tempfile::tempdir().unwrap();
    let env = [("OUTBOX__DATABASE__URL", db.url.as_str()), ("OUTBOX__ROUTE__0__STDOUT", "{}")];
    let run = |args: &[&str], input: &str| relay(directory.path(), args, &env, input);

    let before = run(&["migrate", "status", "--output", "json"], "");
    assert_eq!((before.code, &before.json()["items"][0]["state"]), (Some(1), &"pending".into()));
    let unprepared = run(&["check", "--connect"], "");
    assert_eq!(unprepared.code, Some(1), "{unprepared:?}");
    assert!(unprepared.stdout.contains("database: error: "), "{unprepared:?}");
    let refused =
        run(&["enqueue", "--aggregate-type", "o", "--aggregate-id", "1", "--event-type", "e", "--payload", "1"], "");
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("run the migrations"), "{refused:?}");

    let up = run(&["migrate", "up"], "");
    assert_eq!((up.code, up.stderr.as_str()), (Some(0), ""), "{up:?}");
    let again = run(&["migrate", "up", "--output", "json"], "");
    assert_eq!((again.code, again.json()), (Some(0), serde_json::json!({ "items": [] })));
    assert_eq!(run(&["migrate", "status"], "").code, Some(0));

    let id = "00000000-0000-4000-8000-000000000001";
    let one = run(
        &[
            "enqueue",
            "--aggregate-type",
            "order",
            "--aggregate-id",
            "1",
            "--event-type",
            "order.placed",
            "--payload",
            "{\"n\": 1.10}",
            "--header",
            "tenant=a=b",
            "--event-id",
            id,
            "--output",
            "json",
        ],
        "",
    );
    assert_eq!((one.code, one.json()), (Some(0), serde_json::json!({ "items": [{ "event_id": id }] })), "{one:?}");
    let line = |id: &str, payload: &str| {
        format!("{{\"aggregate_type\":\"order\",\"aggregate_id\":\"{id}\",\"event_type\":\"e\",{payload}}}\n")
    };
    let input = line("2", "\"payload\":null") + &line("3", "\"payload_base64\":\"AP8K\"");
    let many = run(&["enqueue", "--stdin"], &input);
    assert_eq!((many.code, many.stdout.lines().count()), (Some(0), 2), "{many:?}");
    let all_or_none = run(&["enqueue", "--stdin"], &(line("4", "\"payload\":1") + &line("", "\"payload\":1")));
    assert_eq!(all_or_none.code, Some(2));
    assert!(all_or_none.stderr.contains("event 2: aggregate_id must not be empty"), "{all_or_none:?}");
    let rows =
        db.psql("SELECT aggregate_id, payload, encode(payload_bytes, 'hex'), headers FROM outbox.events ORDER BY id");
    assert_eq!(rows.unwrap(), "1|{\"n\": 1.10}||{\"tenant\":\"a=b\"}\n2|null||\n3||00ff0a|");

    let status = run(&["status", "--output", "json"], "").json();
    assert_eq!(status["pending"], serde_json::json!({ "rows": 3, "exact": true }));
    assert!(status["oldest_pending_age_seconds"].as_f64().unwrap() >= 0.0);
    let text = run(&["status"], "").stdout;
    assert!(text.contains("pending         3, oldest") && text.contains("dead letters    0"), "{text}");

    let check = run(&["check", "--connect", "--output", "json"], "");
    assert_eq!(check.code, Some(0), "{check:?}");
    let findings = check.json()["findings"].clone();
    let about = |name: &str| findings.as_array().unwrap().iter().any(|f| f["about"] == name && f["severity"] == "ok");
    assert!(about("config") && about("database") && about("broker"), "{findings}");
}

#[test]
fn blocked_events_are_listed_retried_and_skipped() {
    let Some(db) = test_database_or_skip("cli_blocked") else { return };
    let directory = tempfile::tempdir().unwrap();
    let env = [("OUTBOX__DATABASE__URL", db.url.as_str()), ("USER", "ewa")];
    let run = |args: &[&str]| relay(directory.path(), args, &env, "");
    assert_eq!(run(&["migrate", "up"]).code, Some(0));
    let fill = "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) \
                SELECT 'order', i, 'placed', '1' FROM generate_series(1, 4) AS i; \
                INSERT INTO outbox.retries (id, event_id, bucket, aggregate_type, aggregate_id, attempts, blocked, \
                  last_error_kind, last_error) \
                SELECT id, event_id, bucket, aggregate_type, aggregate_id, 10, true, 'failed', E'no\\nroute' \
                  FROM outbox.events WHERE id <= 3";
    db.psql(fill).unwrap();

    let listed = run(&["blocked", "list", "--aggregate-type", "order", "--limit", "2", "--output", "json"]).json();
    let ids: Vec<_> = listed["items"].as_array().unwrap().iter().map(|item| item["id"].as_i64().unwrap()).collect();
    assert_eq!((ids, &listed["items"][0]["kind"]), (vec![1, 2], &"failed".into()));
    let text = run(&["blocked", "list", "--limit", "2"]).stdout;
    assert!(text.lines().count() == 3 && text.contains("no\\nroute"), "one event is one line: {text}");
    assert!(text.ends_with("there may be more: --after 2\n"), "{text}");
    assert!(run(&["status"]).stdout.contains("blocked         3"));

    for args in [&["blocked", "retry"][..], &["blocked", "skip", "--dry-run"]] {
        let refused = run(args);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("say which events: --event-id"), "{refused:?}");
    }
    assert_eq!(run(&["blocked", "retry", "--all", "--aggregate-id", "1"]).code, Some(2));
    let affected = |args: &[&str]| {
        let done = run(&[args, &["--output", "json"]].concat());
        assert_eq!(done.code, Some(0), "{done:?}");
        done.json()["affected"].as_u64().unwrap()
    };
    assert_eq!(affected(&["blocked", "skip", "--all", "--dry-run"]), 3);
    assert_eq!(affected(&["blocked", "skip", "--aggregate-id", "2", "--reason", "sent by hand"]), 1);
    assert_eq!(affected(&["blocked", "skip", "--aggregate-id", "2"]), 0);
    assert_eq!(run(&["blocked", "retry", "--all"]).stdout, "2 will be sent again\n");
    assert_eq!(run(&["blocked", "list", "--all"]).stdout, "");
    let audit = db.psql("SELECT who LIKE '%(ewa)', action, affected, reason FROM outbox.audit ORDER BY id").unwrap();
    assert_eq!(audit, "t|blocked skip|1|sent by hand\nt|blocked retry|2|");
    assert_eq!(db.psql("SELECT id, reason_kind, attempts FROM outbox.dead_letters").unwrap(), "2|failed|10");
}
