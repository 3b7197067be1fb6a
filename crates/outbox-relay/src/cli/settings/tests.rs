//! Table tests of the whole way from file, environment and flags to the model.

use super::*;

const ALL: &[&str] = &["stdout", "rabbitmq"];
const RUN: Needs = Needs { database: true, route: true };
const VALID: &str = "[database]\nurl = 'postgres://relay:geheim@localhost/app'\n[[route]]\n[route.stdout]\n";

fn load_text(text: &str, env: &[(&str, &str)], flags: &[&str]) -> Result<Settings, Vec<String>> {
    load_text_for(text, env, flags, ALL)
}

fn load_text_for(
    text: &str,
    env: &[(&str, &str)],
    flags: &[&str],
    compiled_in: &[&str],
) -> Result<Settings, Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("outbox.toml");
    std::fs::write(&file, text).unwrap();
    let inputs = Inputs {
        file: Some(file.clone()),
        env: env.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
    };
    let name = file.display().to_string();
    let text = |problem: &Problem| problem.to_string().replace(&name, "outbox.toml");
    load_with(&inputs, RUN, compiled_in).map_err(|problems| problems.iter().map(text).collect())
}

fn problems(text: &str, env: &[(&str, &str)], flags: &[&str]) -> Vec<String> {
    load_text(text, env, flags).err().unwrap_or_default()
}

#[test]
fn a_problem_names_key_place_and_remedy() {
    let check = |text: &str, expected: &[&str]| assert_eq!(problems(&format!("{VALID}{text}"), &[], &[]), expected);
    check("", &[]);
    check(
        "[relay]\nmax_atempts = 3",
        &["relay.max_atempts (outbox.toml:6): unknown key; did you mean `relay.max_attempts`?"],
    );
    check("[realy]\nwindow = 3", &["realy (outbox.toml:5): unknown table; did you mean `relay`?"]);
    check(
        "[relay]\npoll_interval = 50",
        &["relay.poll_interval (outbox.toml:6): `50` has no unit; use one of ms, s, m, h, d, for example `50ms`"],
    );
    check(
        "[relay]\nwindow_bytes = '64'",
        &[
            "relay.window_bytes (outbox.toml:6): `64` has no unit; use one of B, KB, MB, GB, KiB, MiB, GiB, for example `64MiB`",
        ],
    );
    check(
        "[relay]\nwindow = '5'",
        &["relay.window (outbox.toml:6): must be a number, not text; write it without quotes"],
    );
    check("[relay]\nname = 5", &["relay.name (outbox.toml:6): must be text, not a number; write it in quotes"]);
    check("[relay]\nwindow = -5", &["relay.window (outbox.toml:6): `-5` is not a whole number from 0 on"]);
    check(
        "[relay]\nwindow = 1.5",
        &["relay.window (outbox.toml:6): must be a whole number, not a value of type float"],
    );
    check("[relay]\nwindow = 0", &["relay.window (outbox.toml:6): must be at least 1, got 0"]);
    check("[relay]\nlease = '1s'", &["relay.lease (outbox.toml:6): must be at least 3s, got 1s"]);
    check("[relay]\nretry_max = '10ms'", &["relay.retry_max (outbox.toml:6): must be at least 1s, got 10ms"]);
    check(
        "[relay]\nordering = 'agregate'",
        &["relay.ordering (outbox.toml:6): `agregate` is not one of `aggregate` and `none`; did you mean `aggregate`?"],
    );
    check("[relay]\nurl = 'x'", &["relay.url (outbox.toml:6): unknown key; did you mean `database.url`?"]);
    check(
        "[log]\nlevel = 'loud'",
        &["log.level (outbox.toml:6): `loud` is not one of `error`, `warn`, `info`, `debug` and `trace`"],
    );
    check("[relay]\nwindow = 5\nwindow = 6", &["syntax (outbox.toml:7): is no TOML: duplicate key"]);
    check(
        "[relay]\nwindow = 0\nwindo = 1\nlease = 5",
        &[
            "relay.lease (outbox.toml:8): `5` has no unit; use one of ms, s, m, h, d, for example `50ms`",
            "relay.windo (outbox.toml:7): unknown key; did you mean `relay.window`?",
            "relay.window (outbox.toml:6): must be at least 1, got 0",
        ],
    );
}

#[test]
fn routes_and_brokers() {
    let check = |text: &str, expected: &[&str]| {
        assert_eq!(problems(&format!("[database]\nurl = 'postgres://x'\n{text}"), &[], &[]), expected);
    };
    check("", &["route: is missing; for example a `[[route]]` with a table `[route.stdout]`"]);
    check("[[route]]", &["route[0]: names no broker; add one of the tables `[route.stdout]` and `[route.rabbitmq]`"]);
    check(
        "[route.stdout]",
        &[
            "route (outbox.toml:3): is a list; write `[[route]]`",
            "route: is missing; for example a `[[route]]` with a table `[route.stdout]`",
        ],
    );
    check(
        "[[route]]\nstdout = true",
        &[
            "route[0].stdout (outbox.toml:4): is a table, not a value; write `[route.stdout]`",
            "route[0]: names no broker; add one of the tables `[route.stdout]` and `[route.rabbitmq]`",
        ],
    );
    check(
        "[[route]]\n[route.rabitmq]\nurl = 'x'",
        &["route[0].rabitmq (outbox.toml:4): unknown broker `rabitmq`; did you mean `rabbitmq`?"],
    );
    check(
        "[[route]]\n[route.sqs]\nqueue_url = 'x'",
        &["route[0].sqs (outbox.toml:4): broker `sqs` is not compiled in; enable feature `sqs`"],
    );
    check(
        "[[route]]\n[route.stdout]\n[route.rabbitmq]\nurl = 'amqp://x'\nexchange = ''",
        &["route[0]: leads to `rabbitmq` and `stdout` at once; keep exactly one of these tables"],
    );
    check(
        "[[route]]\nlease = '5s'\n[route.stdout]",
        &["route[0].lease (outbox.toml:4): unknown key; it can't be set per route; set `relay.lease`"],
    );
    check(
        "[[route]]\nname = ' '\n[route.stdout]",
        &["route[0].name (outbox.toml:4): must be 1 to 63 bytes without control characters, got 1 bytes"],
    );
    check(
        "[[route]]\n[route.rabbitmq]\nexchnge = 'x'",
        &[
            "route[0].rabbitmq.exchnge (outbox.toml:5): unknown key; did you mean `route[0].rabbitmq.exchange`?",
            "route[0].rabbitmq.url: is missing; for example amqp://localhost",
            "route[0].rabbitmq.exchange: is missing; for example orders",
        ],
    );
}

#[test]
fn contradictions_between_keys_are_found() {
    let table = "[route.rabbitmq]\nurl = 'amqp://x'\nexchange = ''\n";
    let check = |keys: &str, in_all: Option<&str>| {
        let found = problems(&VALID.replace("[route.stdout]", &format!("{table}{keys}")), &[], &[]);
        let text = |in_all: &str| {
            format!(
                "must, with three times connect_timeout, be shorter than publish_timeout (30s), got {in_all} in all"
            )
        };
        assert_eq!(found.len(), usize::from(in_all.is_some()), "{keys}: {found:?}");
        assert!(found.iter().all(|found| found.ends_with(&text(in_all.unwrap_or_default()))), "{keys}: {found:?}");
    };
    check("", None);
    check("confirm_timeout = '30s'", Some("45s"));
    check("confirm_timeout = '15s'", Some("30s"));
    check("confirm_timeout = '14s'", None);
    check("connect_timeout = '6s'", Some("30s"));
    let found = problems(VALID, &[("OUTBOX__DATABASE__MAX_CONNECTIONS", "2")], &["database.schema=pg_x"]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("database.schema (--set): the schema name must not be"), "{found:?}");
    assert!(found[1].starts_with("database.max_connections (OUTBOX__DATABASE__MAX_CONNECTIONS): must be 3 to 100"));
}

#[path = "routes_tests.rs"]
mod routes;

#[test]
fn a_broker_that_is_not_compiled_in_names_its_feature() {
    let env = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
    let env = vec![
        env("OUTBOX__DATABASE__URL", "postgres://x"),
        env("OUTBOX__ROUTE__0__RABBITMQ__URL", "amqp://x"),
        env("OUTBOX__ROUTE__0__RABBITMQ__EXCHANGE", "x"),
    ];
    let inputs = Inputs { env, ..Inputs::default() };
    let problems = load_with(&inputs, RUN, &["stdout"]).unwrap_err();
    let [problem] = problems.as_slice() else { panic!("{problems:?}") };
    assert_eq!(problem.key, "route[0].rabbitmq");
    assert_eq!(problem.problem, "broker `rabbitmq` is not compiled in");
    assert_eq!(problem.remedy.as_deref(), Some("enable feature `rabbitmq`"));
    load_with(&inputs, RUN, ALL).unwrap();
}

#[test]
fn what_comes_later_is_refused_with_a_sentence() {
    let check = |text: &str, key: &str, sentence: &str| {
        let found = problems(&format!("{VALID}{text}"), &[], &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("{key} (outbox.toml:")) && found[0].contains(sentence), "{found:?}");
    };
    check("[history]\nkeep = '7d'", "history.keep", "comes in a later version; use \"off\"");
    check("[history]\npartition = 'day'", "history.partition", "comes in a later version");
    check("[admin]\nlisten = '0.0.0.0:9464'", "admin.listen", "tokens come in a later version");
    check("[admin]\ntoken_file = '/x'", "admin.token_file", "tokens come in a later version");
    let in_route = |text: &str, key: &str, sentence: &str| {
        let found = problems(&VALID.replace("[[route]]", &format!("[[route]]\n{text}")), &[], &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("{key} (outbox.toml:")) && found[0].contains(sentence), "{found:?}");
    };
    in_route("format = 'avro'", "route[0].format", "`avro` is not one of `plain`, `cloudevents`");
    in_route("format = 'cloudevents'", "route[0].format", "stdout knows no other than `plain`");
    in_route("cloudevents_source = '/x'", "route[0].cloudevents_source", "is of no use without CloudEvents");
}

#[test]
fn the_environment_is_checked_as_strictly() {
    let check = |name: &str, value: &str, expected: &str| {
        assert_eq!(problems(VALID, &[(name, value)], &[]), [expected]);
    };
    check(
        "OUTBOX__RELAY__MAX_ATEMPTS",
        "3",
        "OUTBOX__RELAY__MAX_ATEMPTS: unknown variable; did you mean `OUTBOX__RELAY__MAX_ATTEMPTS`?",
    );
    check("OUTBOX__DATABASE_URL", "x", "OUTBOX__DATABASE_URL: unknown variable; did you mean `OUTBOX__DATABASE__URL`?");
    check(
        "OUTBOX__relay__window",
        "3",
        "OUTBOX__relay__window: unknown variable; did you mean `OUTBOX__RELAY__WINDOW`?",
    );
    check("OUTBOX__ROUTE__NAME", "x", "OUTBOX__ROUTE__NAME: unknown variable; did you mean `OUTBOX__ROUTE__0__NAME`?");
    check("OUTBOX__RELAY__WINDOW", "", "OUTBOX__RELAY__WINDOW: is set but empty; give it a value or unset it");
    check("OUTBOX__RELAY__WINDOW", " ", "OUTBOX__RELAY__WINDOW: is set but empty; give it a value or unset it");
    check("OUTBOX__RELAY__WINDOW", "no", "relay.window (OUTBOX__RELAY__WINDOW): `no` is not a whole number from 0 on");
    check(
        "OUTBOX__RELAY__LEASE",
        "20",
        "relay.lease (OUTBOX__RELAY__LEASE): `20` has no unit; use one of ms, s, m, h, d, for example `50ms`",
    );
    assert_eq!(problems(VALID, &[("OUTBOX_TEST_PG_URL", ""), ("PATH", "x")], &[]), [""; 0]);
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_no_utf8_is_refused() {
    use std::os::unix::ffi::OsStringExt as _;
    let env = vec![("OUTBOX__RELAY__NAME".into(), OsString::from_vec(vec![0xff]))];
    let found = load_with(&Inputs { env, ..Inputs::default() }, Needs { database: false, route: false }, ALL);
    assert_eq!(found.unwrap_err()[0].to_string(), "OUTBOX__RELAY__NAME: is no valid UTF-8");
}

#[test]
fn flags_win_over_env_over_file_over_default() {
    let window = |text: &str, env: &[(&str, &str)], flags: &[&str]| {
        let settings = load_text(&format!("{VALID}{text}"), env, flags).unwrap();
        let shown = settings.shown.iter().find(|shown| shown.key == "relay.window").unwrap();
        assert_eq!(shown.value, settings.routes[0].config.window.to_string());
        (settings.routes[0].config.window, shown.origin.to_string().rsplit('/').next().unwrap().to_owned())
    };
    let (file, env, flag) = ("[relay]\nwindow = 5", [("OUTBOX__RELAY__WINDOW", "6")], ["relay.window=7"]);
    assert_eq!(window("", &[], &[]), (2000, "default".into()));
    assert_eq!(window(file, &[], &[]), (5, "outbox.toml:6".into()));
    assert_eq!(window("", &env, &[]), (6, "OUTBOX__RELAY__WINDOW".into()));
    assert_eq!(window(file, &env, &[]), (6, "OUTBOX__RELAY__WINDOW".into()));
    assert_eq!(window(file, &env, &flag), (7, "--set".into()));

    let text = VALID.replace("[[route]]", "[[route]]\nwindow = 9\nordering = 'none'\non_dead = 'block'");
    let settings = load_text(&text, &env, &flag).unwrap();
    assert_eq!((settings.routes[0].config.window, settings.routes[0].config.ordering), (9, crate::Ordering::None));
    assert_eq!(settings.routes[0].config.on_dead, crate::OnDead::Block);
    let text = format!("{VALID}[relay]\non_dead = 'block'");
    assert_eq!(load_text(&text, &[], &[]).unwrap().routes[0].config.on_dead, crate::OnDead::Block);
}

#[test]
fn the_environment_alone_suffices() {
    let env = [("OUTBOX__DATABASE__URL", "postgres://x"), ("OUTBOX__ROUTE__0__STDOUT", "{}")];
    let settings = load_text("", &env, &["route.name=orders"]).unwrap();
    assert_eq!(settings.routes[0].broker.name(), "stdout");
    assert_eq!(settings.routes[0].config.name, "orders");
    assert_eq!(settings.admin, Some(([127, 0, 0, 1], 9464).into()));
    assert!(load_text("", &env, &["admin.listen=off"]).unwrap().admin.is_none());
    let found = load_with(&Inputs::default(), RUN, ALL).unwrap_err();
    let text = found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(text.contains("database.url: is missing; there is no `outbox.toml` here"), "{text}");
    assert!(text.contains("set OUTBOX__DATABASE__URL") && text.contains("set OUTBOX__ROUTE__0__STDOUT={}"), "{text}");
}

#[test]
fn secrets_come_from_files_and_never_show() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("url");
    std::fs::write(&secret, "postgres://relay:versteckt@localhost/app\n").unwrap();
    let path = secret.to_str().unwrap();
    let settings = load_text(VALID, &[("OUTBOX__DATABASE__URL_FILE", path)], &[]).unwrap();
    assert_eq!(settings.database.pg.as_ref().unwrap().url, "postgres://relay:versteckt@localhost/app");
    let shown = format!("{settings:?} {}", serde_json::to_string(&settings.shown).unwrap());
    assert!(!shown.contains("versteckt") && !shown.contains("geheim"), "{shown}");
    assert!(shown.contains("postgres://relay:***@localhost/app"));

    let settings =
        load_text(&VALID.replace("url =", "url_file ="), &[("OUTBOX__DATABASE__URL", "postgres://env")], &[]);
    assert_eq!(settings.unwrap().database.pg.unwrap().url, "postgres://env");

    let both = VALID.replace("url =", &format!("url_file = '{path}'\nurl ="));
    let contradiction = "database.url_file (outbox.toml:2): contradicts `database.url`, which is set in the same place; keep one of them";
    assert_eq!(problems(&both, &[], &[]), [contradiction]);
    let in_the_open = "database.url (--set): may hold a secret, which all users of this machine would see; set `database.url_file` or a variable";
    assert_eq!(problems(VALID, &[], &["database.url=postgres://u:geheim@h"]), [in_the_open]);

    let check = |content: Option<&str>, expected: &str| {
        match content {
            Some(content) => std::fs::write(&secret, content).unwrap(),
            None => std::fs::remove_file(&secret).unwrap(),
        }
        let found = problems(VALID, &[("OUTBOX__DATABASE__URL_FILE", path)], &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(expected) && !found[0].contains("geheim"), "{found:?}");
    };
    check(Some("geheim"), "is not a URL");
    check(Some("\n"), "is empty");
    check(None, "can't be read");
    let torn = VALID.replace("app'", "app");
    assert!(problems(&torn, &[], &[]).iter().all(|problem| !problem.contains("geheim")));
}

#[test]
fn every_default_reads_back() {
    for key in super::key_table::all() {
        if let Some(text) = key.default_text() {
            key.parse(&text).unwrap_or_else(|error| panic!("{}: {error}", key.name));
        }
    }
    // What the table says without being read from the engine's own defaults.
    let settings = load_text(VALID, &[], &[]).unwrap();
    assert_eq!(settings.routes[0].config, RouteConfig::new("default"));
}

/// What a broker's table with nothing but its required keys makes, against the publisher's own defaults.
macro_rules! the_defaults_are_those_of_the_publisher {
    ($($test:ident: $feature:literal, $table:literal, $own:expr;)*) => {$(
        #[cfg(feature = $feature)]
        #[test]
        fn $test() {
            let text = VALID.replace("[route.stdout]", concat!("[route.", $feature, "]\n", $table));
            let settings = load_text_for(&text, &[], &[], &[$feature]).unwrap();
            let mut made = $own;
            made = settings.routes[0].broker.config().map_err(|_| made).expect("the table makes a config");
            assert!(made == $own, "{made:?} against {:?}", $own);
        }
    )*};
}

the_defaults_are_those_of_the_publisher! {
    rabbitmq_has_its_publishers_defaults: "rabbitmq", "url = 'amqp://x'\nexchange = 'x'",
        outbox_rabbitmq::RabbitMqConfig::new("amqp://x", "x");
    nats_has_its_publishers_defaults: "nats", "url = 'nats://x'",
        outbox_nats::NatsConfig::new("nats://x", outbox_nats::DEFAULT_TOPIC);
    sqs_has_its_publishers_defaults: "sqs", "queue_url = 'https://x/1/q'\nregion = 'r'",
        outbox_sqs::SqsConfig::new("https://x/1/q").with_region("r");
    kafka_has_its_publishers_defaults: "kafka", "brokers = 'x:9092'", outbox_kafka::KafkaConfig::new("x:9092");
    webhook_has_its_publishers_defaults: "webhook", "url = 'https://x/'\nsecret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'",
        outbox_webhook::WebhookConfig::new("https://x/", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
}

/// Problems between keys and problems of a publisher are told together, each with its place.
#[cfg(all(feature = "rabbitmq", feature = "nats", feature = "sqs"))]
#[test]
fn all_problems_of_a_brokers_table_are_told_at_once_with_their_places() {
    let check = |table: &str, env: &[(&str, &str)], expected: &[&str]| {
        let text = VALID.replace("[route.stdout]\n", &format!("[route.{table}"));
        let found = load_text_for(&text, env, &[], &["rabbitmq", "nats", "sqs"]).err().unwrap_or_default();
        assert_eq!(found, expected);
    };
    check(
        "rabbitmq]\nurl = 'amqp://u:geheim%zz@h'\nexchange = 'x'\nconfirm_timeout = '1d'\nchannels = 0",
        &[],
        &[
            "route[0].rabbitmq.confirm_timeout (outbox.toml:7): must, with three times connect_timeout, be shorter than publish_timeout (30s), got 86415s in all",
            "route[0].rabbitmq.channels (outbox.toml:8): must be 1 to 64, got 0",
            "route[0].rabbitmq.confirm_timeout (outbox.toml:7): must be 100ms to 1h, got 24h",
            "route[0].rabbitmq.url (outbox.toml:5): has a `%` that is not followed by two hexadecimal digits; write `%25` for the sign itself",
        ],
    );
    check(
        "nats]\nurl = 'nats://h'\nuser = 'relay'\npassword = 'geheim'",
        &[("OUTBOX__ROUTE__0__NATS__TOKEN", "geheim")],
        &["route[0].nats.user (outbox.toml:6): is one login and token another; keep one of them"],
    );
    check(
        "sqs]\nqueue_url = 'orders'\nconnect_timeout = '0s'",
        &[],
        &[
            "route[0].sqs.queue_url (outbox.toml:5): must be the URL of a queue such as https://sqs.eu-west-1.amazonaws.com/123456789012/orders",
            "route[0].sqs.connect_timeout (outbox.toml:6): must be 100ms to 1h, got 0s",
        ],
    );
    check(
        "rabbitmq]\nurl = 'amqp://h'\nexchange = 'x'\nformat = 'cloudevents'",
        &[],
        &[
            "route[0].rabbitmq.format (outbox.toml:7): unknown key; it belongs into `[[route]]`, above `[route.rabbitmq]`: set `route[0].format`",
        ],
    );
    // A file that is missing is told at the start, not once the broker is needed.
    for key in ["creds_file", "password_file", "ca_file"] {
        let user = if key == "password_file" { "user = 'relay'\n" } else { "" };
        let missing = format!(
            "route[0].nats.{key} (outbox.toml:{}): `/nowhere/x` can't be read: No such file or directory (os error 2)",
            5 + user.lines().count() + 1
        );
        let text = format!("[route.nats]\nurl = 'tls://h'\n{user}{key} = '/nowhere/x'");
        let text = VALID.replace("[route.stdout]\n", &text);
        let found = load_text_for(&text, &[], &[], &["nats"]).err().unwrap_or_default();
        assert!(found.contains(&missing), "{found:?}");
    }
}

#[test]
fn a_route_has_one_number() {
    for name in ["OUTBOX__ROUTE__00__NAME", "OUTBOX__ROUTE__+0__NAME"] {
        let expected = format!("{name}: unknown variable; did you mean `OUTBOX__ROUTE__0__NAME`?");
        assert_eq!(problems(VALID, &[(name, "orders")], &[]), [expected]);
    }
    assert_eq!(problems(VALID, &[], &["route[00].name=orders"]).len(), 1);
}
