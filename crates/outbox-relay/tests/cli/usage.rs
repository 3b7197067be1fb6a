//! Wrong calls and wrong configurations: exit 2, everything listed, no secret shown.

use crate::binary::relay;

const GOOD: &str = "[database]\nurl = 'postgres://relay:geheim@127.0.0.1:1/app'\n[[route]]\n[route.stdout]\n";

#[test]
fn all_problems_are_listed_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let text = format!("{GOOD}[relay]\nmax_atempts = 3\npoll_interval = 50\n");
    std::fs::write(directory.path().join("outbox.toml"), text).unwrap();
    let env = [("OUTBOX__RELAY__WINDO", "5")];
    for args in [&["run"][..], &["check"], &["migrate", "up"], &["status"]] {
        let done = relay(directory.path(), args, &env, "");
        assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{done:?}");
        assert_eq!(
            done.stderr,
            "error: 3 problems in the configuration\n  \
             relay.max_atempts (outbox.toml:6): unknown key; did you mean `relay.max_attempts`?\n  \
             relay.poll_interval (outbox.toml:7): `50` has no unit; use one of ms, s, m, h, d, for example `50ms`\n  \
             OUTBOX__RELAY__WINDO: unknown variable; did you mean `OUTBOX__RELAY__WINDOW`?\n"
        );
    }
    let done = relay(directory.path(), &["check", "--output", "json"], &env, "");
    let problems: serde_json::Value = serde_json::from_str(&done.stderr).unwrap();
    assert_eq!(problems["error"], "config");
    assert_eq!(problems["problems"][0]["key"], "relay.max_atempts");
    assert_eq!(problems["problems"][0]["remedy"], "did you mean `relay.max_attempts`?");
}

#[test]
fn bad_calls_exit_2() {
    let directory = tempfile::tempdir().unwrap();
    let check = |args: &[&str], part: &str| {
        let done = relay(directory.path(), args, &[], "");
        assert_eq!(done.code, Some(2), "{args:?} {done:?}");
        assert!(done.stderr.contains(part), "{args:?}: {}", done.stderr);
    };
    check(&[], "Usage:");
    check(&["migrat"], "migrate");
    check(&["check", "--conect"], "--connect");
    check(&["check", "--config", "absent.toml"], "`absent.toml` can't be read");
    check(&["run"], "there is no `outbox.toml` here; name a file with --config, or set OUTBOX__DATABASE__URL");
    check(&["enqueue", "--aggregate-type", "order"], "--aggregate-id");
    check(&["enqueue", "--stdin", "--aggregate-type", "order"], "cannot be used with");
    check(&["check", "--set", "relay.window"], "needs KEY=VALUE");
}

#[test]
fn show_tells_value_and_origin_and_hides_secrets() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("outbox.toml"), format!("{GOOD}[relay]\nwindow = 5\nlease = '1m'\n")).unwrap();
    let env = [("OUTBOX__RELAY__WINDOW", "6")];
    let done = relay(directory.path(), &["check", "--show", "--set", "relay.batch_size=7"], &env, "");
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    for line in [
        "database.url = postgres://relay:***@127.0.0.1:1/app  # outbox.toml:2\n",
        "relay.window = 6  # OUTBOX__RELAY__WINDOW\n",
        "relay.lease = 1m  # outbox.toml:7\n",
        "relay.batch_size = 7  # --set\n",
        "relay.max_attempts = 10  # default\n",
        "route[0].stdout = {}  # outbox.toml:4\n",
        "config: ok: the configuration is valid\n",
    ] {
        assert!(done.stdout.contains(line), "{line}{}", done.stdout);
    }
    assert!(!done.stdout.contains("geheim"));
    let json = relay(directory.path(), &["check", "--show", "--output", "json"], &env, "").json();
    let window = json["config"].as_array().unwrap().iter().find(|item| item["key"] == "relay.window").unwrap();
    assert_eq!((&window["value"], &window["origin"]), (&"6".into(), &"OUTBOX__RELAY__WINDOW".into()));
}

#[test]
fn a_database_that_is_away_fails_without_its_password() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("outbox.toml"), GOOD).unwrap();
    for args in [&["migrate", "status"][..], &["status"], &["migrate", "up"], &["check", "--connect"]] {
        let done = relay(directory.path(), args, &[], "");
        assert_eq!(done.code, Some(1), "{done:?}");
        let text = format!("{}{}", done.stdout, done.stderr);
        assert!(text.contains("the database can't be reached") && !text.contains("geheim"), "{text}");
    }
}

#[cfg(feature = "rabbitmq")]
#[test]
fn what_only_the_publisher_knows_is_checked_offline_too() {
    let directory = tempfile::tempdir().unwrap();
    let table = "[route.rabbitmq]\nurl = 'amqp://u:geheim@h'\nexchange = 'x'\ntopic = 'orders.#'\nchannels = 0\n";
    std::fs::write(directory.path().join("outbox.toml"), GOOD.replace("[route.stdout]\n", table)).unwrap();
    let done = relay(directory.path(), &["check"], &[], "");
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(
        done.stderr.contains("route[0].rabbitmq.channels (outbox.toml:8): must be 1 to 64, got 0"),
        "{}",
        done.stderr
    );
    assert!(
        done.stderr.contains("route[0].rabbitmq.topic (outbox.toml:7): topic template `orders.#` contains '#'"),
        "{}",
        done.stderr
    );
    assert!(!done.stderr.contains("geheim"));
}

#[cfg(not(feature = "rabbitmq"))]
#[test]
fn a_broker_that_is_not_compiled_in_names_its_feature() {
    let directory = tempfile::tempdir().unwrap();
    let table = "[route.rabbitmq]\nurl = 'amqp://h'\nexchange = 'x'\n";
    std::fs::write(directory.path().join("outbox.toml"), GOOD.replace("[route.stdout]\n", table)).unwrap();
    let done = relay(directory.path(), &["run"], &[], "");
    assert_eq!(done.code, Some(2));
    let expected = "broker `rabbitmq` is not compiled in; enable feature `rabbitmq`";
    assert!(done.stderr.contains(expected), "{}", done.stderr);
}

#[test]
fn a_match_that_divides_an_aggregate_is_warned_of() {
    let directory = tempfile::tempdir().unwrap();
    let of = |matches: &str| format!("[[route]]\nname = 'placed'\nmatch = {matches}\n[route.stdout]\n");
    let check = |routes: &str, expected: Option<&str>| {
        let database = GOOD.split("[[route]]").next().unwrap();
        std::fs::write(directory.path().join("outbox.toml"), format!("{database}{routes}")).unwrap();
        let done = relay(directory.path(), &["check"], &[], "");
        assert_eq!(done.code, Some(0), "{done:?}");
        assert_eq!(done.stdout.contains("config: warning: routes"), expected.is_some(), "{}", done.stdout);
        assert!(done.stdout.contains(expected.unwrap_or_default()), "{}", done.stdout);
    };
    check(&of("{ event_type = ['order.placed'] }"), None);
    let rest = "[[route]]\nname = 'rest'\n[route.rabbitmq]\nurl = 'amqp://h'\nexchange = 'x'\n";
    if cfg!(feature = "rabbitmq") {
        check(&format!("{}{rest}", of("{ aggregate_type = ['order'] }")), None);
        let divided = "routes `placed` and `rest` may divide the events of one aggregate by their types";
        check(&format!("{}{rest}", of("{ event_type = ['order.placed'] }")), Some(divided));
    }
}

/// Twelve routes make eleven lines, not one for each of their 66 pairs.
#[cfg(feature = "rabbitmq")]
#[test]
fn routes_that_divide_aggregates_are_warned_of_once_each() {
    let directory = tempfile::tempdir().unwrap();
    let route = |number: usize| {
        let head = format!("[[route]]\nname = 'r{number}'\nmatch = {{ event_type = ['e{number}'] }}\n");
        format!("{head}[route.rabbitmq]\nurl = 'amqp://h'\nexchange = 'x'\n")
    };
    let routes: String = (0..12).map(route).collect();
    let database = GOOD.split("[[route]]").next().unwrap();
    std::fs::write(directory.path().join("outbox.toml"), format!("{database}{routes}")).unwrap();
    let done = relay(directory.path(), &["check"], &[], "");
    assert_eq!(done.code, Some(0), "{done:?}");
    let warnings: Vec<_> = done.stdout.lines().filter(|line| line.contains("warning: routes")).collect();
    assert_eq!(warnings.len(), 11, "{warnings:#?}");
    assert!(
        warnings[0].contains("routes `r0` and `r1`, `r2`, `r3`, `r4`, `r5` and 6 more may divide"),
        "{}",
        warnings[0]
    );
    assert!(warnings[10].contains("routes `r10` and `r11` may divide"), "{}", warnings[10]);
}

#[test]
fn the_sql_needs_no_database() {
    let directory = tempfile::tempdir().unwrap();
    let env = [("OUTBOX__DATABASE__SCHEMA", "my \"box\"")];
    let done = relay(directory.path(), &["migrate", "sql", "--roles"], &env, "");
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    assert!(done.stdout.contains("CREATE SCHEMA IF NOT EXISTS \"my \"\"box\"\"\";"));
    assert!(done.stdout.contains("CREATE TABLE events") && done.stdout.contains("outbox_relay"));
}
