use super::*;

const QUEUE: &str = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders";

fn config() -> SqsConfig {
    SqsConfig::new(QUEUE).with_access_key("AKIDHUNTER", "hunter2")
}

fn problems(config: &SqsConfig) -> Vec<String> {
    let mut errors = config.check_publishing();
    errors.extend(config.check_connecting().err().unwrap_or_default());
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn a_queue_url_and_a_key_are_enough() {
    assert_eq!(problems(&config()), [""; 0]);
    assert_eq!(problems(&SqsConfig::new(QUEUE)), [""; 0], "a provider may bring the key");
}

#[test]
fn each_problem_is_named_with_its_field_and_without_a_secret() {
    let check = |config: SqsConfig, expected: &[&str]| {
        let found = problems(&config);
        assert_eq!(found, expected);
        assert!(found.iter().all(|text| !text.contains("hunter2")));
        for secret in ["hunter2", "AKIDHUNTER", "token-hunter"] {
            assert!(!format!("{config:?}").contains(secret));
        }
    };
    let url_of_a_queue =
        "queue_url: must be the URL of a queue such as https://sqs.eu-west-1.amazonaws.com/123456789012/orders";
    let no_region = "region: must be set, for queue_url does not tell it";
    for url in
        ["", "orders", "https://", "ftp://host/1/q", "https://host/", "https://u:hunter2@host/1/q", "http://h/a b"]
    {
        check(SqsConfig { region: Some("eu-west-1".into()), ..SqsConfig::new(url) }, &[url_of_a_queue]);
        check(SqsConfig::new(url), &[url_of_a_queue]);
    }
    check(
        SqsConfig { queue_url: format!("{QUEUE}/{{event_type}}"), ..config() },
        &["queue_url: must be one URL: use a route for each queue instead of a template"],
    );
    check(
        SqsConfig { queue_url: format!("{QUEUE}{}", "x".repeat(2048)), ..config() },
        &["queue_url: must be at most 2048 bytes, got 2103"],
    );
    check(SqsConfig::new("http://localhost:4566/000000000000/orders"), &[no_region]);
    check(config().with_region(""), &["region: must not be empty"]);
    check(config().with_region("us-east-1"), &["region: must be that of queue_url, `eu-west-1`, got `us-east-1`"]);
    check(
        config().with_endpoint_url("localhost:4566"),
        &["endpoint_url: must look like https://host:port, without user, password or blanks"],
    );
    check(
        config().with_endpoint_url("http://localhost:4566").with_ca_file("ca.pem"),
        &["ca_file: must not be set for an http:// endpoint"],
    );
    check(
        SqsConfig { access_key_id: None, session_token: Some("token-hunter".into()), ..config() },
        &[
            "access_key_id: goes with secret_access_key: set both or none",
            "session_token: goes with access_key_id and secret_access_key",
        ],
    );
    check(
        config()
            .with_request_timeout(Duration::ZERO)
            .with_connect_timeout(Duration::from_secs(3601))
            .with_max_in_flight(0)
            .with_max_message_bytes(1 << 21),
        &[
            "request_timeout: must be 100ms to 1h, got 0s",
            "connect_timeout: must be 100ms to 1h, got 3601s",
            "connect_timeout: must not exceed request_timeout (0s), got 3601s",
            "max_in_flight: must be 1 to 256, got 0",
            "max_message_bytes: must be 1KiB to 1MiB, got 2097152 bytes",
        ],
    );
}

#[test]
fn region_and_endpoint_are_read_from_the_queue_url() {
    let check = |config: SqsConfig, region: &str, endpoint: Option<&str>| {
        let destination = config.check_connecting().unwrap();
        assert_eq!((destination.region.as_str(), destination.endpoint.as_deref()), (region, endpoint));
        let plain = endpoint.is_some_and(|url| url.starts_with("http:"));
        assert_eq!(destination.plain, plain);
    };
    check(config(), "eu-west-1", None);
    check(SqsConfig::new("https://sqs.cn-north-1.amazonaws.com.cn/1/q"), "cn-north-1", None);
    check(SqsConfig::new("https://sqs-fips.us-east-1.amazonaws.com/1/q"), "us-east-1", None);
    check(SqsConfig::new("https://sqs.eu-west-1.api.aws/1/q"), "eu-west-1", None);
    check(SqsConfig::new("https://vpce-0a.sqs.eu-west-1.vpce.amazonaws.com/1/q"), "eu-west-1", None);
    check(config().with_endpoint_url("https://vpce"), "eu-west-1", Some("https://vpce"));
    // Never to AWS when the queue is elsewhere.
    let local = SqsConfig::new("http://localhost:4566/000000000000/q").with_region("r");
    check(local, "r", Some("http://localhost:4566"));
    let lookalike = SqsConfig::new("https://sqs.eu-west-1.amazonaws.com.example.org/1/q").with_region("r");
    check(lookalike, "r", Some("https://sqs.eu-west-1.amazonaws.com.example.org"));
}

#[test]
fn a_fifo_queue_is_known_by_its_url() {
    assert!(SqsConfig::new(format!("{QUEUE}.fifo")).is_fifo());
    assert!(!config().is_fifo());
}

#[test]
fn it_reads_units_and_refuses_unknown_keys() {
    let read = |json: &str| serde_json::from_str::<SqsConfig>(json);
    let config = read(r#"{"queue_url":"https://h/q","request_timeout":"2s","max_message_bytes":"256KiB"}"#).unwrap();
    assert_eq!((config.request_timeout, config.max_message_bytes), (Duration::from_secs(2), 262_144));
    assert_eq!(config.max_in_flight, DEFAULT_MAX_IN_FLIGHT);
    assert!(read(r#"{"queue":"orders"}"#).unwrap_err().to_string().contains("unknown field `queue`"));
    assert!(read(r#"{"format":"plain"}"#).unwrap_err().to_string().contains("unknown field `format`"));
    assert!(read(r#"{"request_timeout":2}"#).unwrap_err().to_string().contains("a duration with its unit"));
}
