use super::*;

fn problems(config: &KafkaConfig) -> Vec<String> {
    let mut errors = config.check_publishing().err().unwrap_or_default();
    errors.extend(config.check_connecting().err().unwrap_or_default());
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn the_defaults_are_valid() {
    assert_eq!(problems(&KafkaConfig::default()), [""; 0]);
}

#[test]
fn each_problem_is_named_with_its_field_and_without_a_secret() {
    let check = |config: KafkaConfig, expected: &[&str]| {
        let found = problems(&config);
        assert_eq!(found, expected);
        assert!(found.iter().all(|text| !text.contains("hunter2")));
        assert!(!format!("{config:?}").contains("hunter2"));
    };
    let brokers = |text: &str| KafkaConfig::new(text);
    let sasl = |mechanism| brokers("a:1").with_sasl(mechanism, "relay", "hunter2");
    check(brokers(""), &["brokers: must be 1 to 100 brokers, got 0"]);
    check(brokers("a"), &["brokers: number 1 must look like host:port"]);
    check(
        brokers("a:1,,b:2,"),
        &["brokers: number 2 must look like host:port", "brokers: number 4 must look like host:port"],
    );
    check(brokers("a:1,kafka://b:2"), &["brokers: number 2 must look like host:port"]);
    check(
        brokers("a:1,b:0, c:99999"),
        &["brokers: number 2 must look like host:port", "brokers: number 3 must look like host:port"],
    );
    check(brokers("[::1]:9092,a_b.c-d:1"), &[]);
    check(brokers("[x]:9092"), &["brokers: number 1 must look like host:port"]);
    check(sasl(SaslMechanism::ScramSha256), &[]);
    check(
        sasl(SaslMechanism::None),
        &["username: needs `sasl` to name a mechanism", "password: needs `sasl` to name a mechanism"],
    );
    check(
        KafkaConfig { password: Some(String::new()), ..sasl(SaslMechanism::Plain) },
        &["password: is needed by `sasl`"],
    );
    check(
        KafkaConfig { tls: false, ..brokers("a:1").with_client_certificate("c.pem", "k.pem") },
        &["cert_file: needs `tls = true`", "key_file: needs `tls = true`"],
    );
    check(
        KafkaConfig { key_file: None, ..brokers("a:1").with_client_certificate("c.pem", "k.pem") },
        &["cert_file: goes with key_file: set both or none"],
    );
    check(
        brokers("a:1")
            .with_topic("orders/{event_type}")
            .with_confirm_timeout(Duration::from_secs(1))
            .with_connect_timeout(Duration::ZERO)
            .with_max_message_bytes(100),
        &[
            "connect_timeout: must be 100ms to 1h, got 0s",
            "max_message_bytes: must be 2KiB to 256MiB, got 100 bytes",
            "topic: `orders/{event_type}` contains '/', and Kafka's topics hold only a-z, A-Z, 0-9, `.`, `_` and `-`",
        ],
    );
    check(
        brokers("a:1").with_confirm_timeout(Duration::from_secs(1)),
        &["confirm_timeout: must be at least connect_timeout (5s)"],
    );
}

#[test]
fn it_reads_units_and_lists_and_refuses_unknown_keys() {
    let read = |json: &str| serde_json::from_str::<KafkaConfig>(json);
    let config = read(
        r#"{"brokers":["a:1","b:2"],"confirm_timeout":"7s","max_message_bytes":"64KiB","sasl":"scram-sha-512",
            "username":"u","password":"p","compression":"lz4","tls":true}"#,
    )
    .unwrap();
    assert_eq!((config.confirm_timeout, config.max_message_bytes), (Duration::from_secs(7), 65_536));
    assert_eq!((config.sasl, config.compression, config.tls), (SaslMechanism::ScramSha512, Compression::Lz4, true));
    assert_eq!((config.brokers.as_slice(), config.topic.as_str()), (&["a:1".into(), "b:2".into()][..], DEFAULT_TOPIC));
    let of_text = read(r#"{"brokers":" a:1, b:2 "}"#).unwrap();
    assert_eq!(of_text.brokers, config.brokers);
    for (json, problem) in [
        (r#"{"broker":"a:1"}"#, "unknown field `broker`"),
        (r#"{"acks":"1"}"#, "unknown field `acks`"),
        (r#"{"format":"plain"}"#, "unknown field `format`"),
        (r#"{"brokers":7}"#, "a list of texts, or one text with commas"),
        (r#"{"confirm_timeout":2}"#, "a duration with its unit"),
        (r#"{"compression":"zstd"}"#, "unknown variant `zstd`"),
        (r#"{"sasl":"gssapi"}"#, "unknown variant `gssapi`"),
    ] {
        let error = read(json).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
}
