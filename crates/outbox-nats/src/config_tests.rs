use super::*;

fn problems(config: &NatsConfig) -> Vec<String> {
    let mut errors = config.check_publishing().err().unwrap_or_default();
    errors.extend(config.check_connecting().err().unwrap_or_default());
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn the_defaults_are_valid() {
    assert_eq!(problems(&NatsConfig::default()), [""; 0]);
}

#[test]
fn each_problem_is_named_with_its_field_and_without_a_secret() {
    let url = "nats://relay:hunter2@server:4222";
    let check = |config: NatsConfig, expected: &[&str]| {
        let found = problems(&config);
        assert_eq!(found, expected);
        assert!(found.iter().all(|text| !text.contains("hunter2")));
        assert!(!format!("{config:?}").contains("hunter2"));
    };
    check(NatsConfig::new(url, "orders"), &[]);
    let looks = "must look like nats://user:password@host:4222 or tls://host:4222, several separated by commas";
    check(NatsConfig::new("amqp://relay:hunter2@server", "orders"), &[&format!("url: {looks}")]);
    check(
        NatsConfig::new(url, "orders").with_ca_file("ca.pem"),
        &["url: must be tls:// when ca_file or cert_file is set"],
    );
    let mut half = NatsConfig::new("tls://server", "orders");
    half.cert_file = Some("c.pem".into());
    check(half, &["cert_file: goes with key_file: set both or none"]);
    let one_login = "creds_file: is one login and the login in `url` another; keep one of them";
    check(NatsConfig::new(url, "orders").with_creds_file("relay.creds"), &[one_login]);
    let two = NatsConfig::default().with_user_and_password("relay", "hunter2").with_token("hunter2");
    check(two, &["user: is one login and token another; keep one of them"]);
    let stray = "url: has a `%` that is not followed by two hexadecimal digits; write `%25` for the sign itself";
    check(NatsConfig::new("nats://relay:hunter2%zz@h:4222", "orders"), &[stray]);
    let no_user = NatsConfig { password: Some("hunter2".to_owned()), ..NatsConfig::default() };
    check(no_user, &["user: goes with either password or password_file"]);
    check(
        NatsConfig::new(url, "orders.>")
            .with_confirm_timeout(Duration::ZERO)
            .with_max_message_bytes(0)
            .with_max_in_flight(0)
            .with_expected_stream("a.b"),
        &[
            "confirm_timeout: must be 100ms to 1h, got 0s",
            "max_message_bytes: must be 1B to 64MiB, got 0 bytes",
            "max_in_flight: must be 1 to 65536, got 0",
            "expected_stream: must be a stream's name: printable ASCII without blanks, `.`, `*`, `>`, `/` and `\\`",
            "topic: topic template `orders.>` contains '>', which is reserved for subscribers or unprintable",
        ],
    );
}

#[test]
fn a_subject_has_no_empty_token_and_no_blank() {
    let check = |topic: &str, ok: bool| assert_eq!(problems(&NatsConfig::new(DEFAULT_URL, topic)).is_empty(), ok);
    check("orders", true);
    check("{aggregate_type}.{header:a.b}.x", true);
    check("{aggregate_type}{event_type}", true);
    check("", false);
    check(".orders", false);
    check("orders.", false);
    check("orders..{event_type}", false);
    check("{event_type}.", false);
    check("my orders", false);
    check(&"x".repeat(MAX_SUBJECT_BYTES), true);
    check(&"x".repeat(MAX_SUBJECT_BYTES + 1), false);
}

#[test]
fn each_way_to_log_in_is_taken() {
    let check = |config: NatsConfig, login| assert_eq!(config.check_connecting().unwrap().login, login);
    let named = |text: &str| text.to_owned();
    check(NatsConfig::default(), Login::Anonymous);
    let password = Login::Password { user: named("u"), password: named("p") };
    check(NatsConfig::new("nats://u:p@a", "x"), password.clone());
    check(NatsConfig::default().with_user_and_password("u", "p"), password);
    check(
        NatsConfig::default().with_user_and_password_file("u", "f"),
        Login::PasswordFile { user: named("u"), file: "f".into() },
    );
    check(NatsConfig::default().with_token("t"), Login::Token(named("t")));
    check(NatsConfig::default().with_token_file("f"), Login::TokenFile("f".into()));
    check(NatsConfig::default().with_creds_file("f"), Login::CredsFile("f".into()));
    for login in [Login::Token(named("hunter2")), Login::Password { user: named("u"), password: named("hunter2") }] {
        assert!(!format!("{login:?}").contains("hunter2"));
    }
}

#[test]
fn it_reads_units_and_refuses_unknown_keys() {
    let read = |json: &str| serde_json::from_str::<NatsConfig>(json);
    let config = read(r#"{"topic":"orders","confirm_timeout":"2s","max_message_bytes":"64KiB"}"#).unwrap();
    assert_eq!((config.confirm_timeout, config.max_message_bytes), (Duration::from_secs(2), 65_536));
    assert_eq!(config.url, DEFAULT_URL);
    assert!(read(r#"{"subject":"orders"}"#).unwrap_err().to_string().contains("unknown field `subject`"));
    assert!(read(r#"{"confirm_timeout":2}"#).unwrap_err().to_string().contains("duration with its unit"));
}
