use super::*;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn problems(config: &WebhookConfig) -> Vec<String> {
    let mut errors = config.check_requests().err().unwrap_or_default();
    errors.extend(config.check_connecting().err().unwrap_or_default());
    errors.iter().map(ToString::to_string).collect()
}

fn valid() -> WebhookConfig {
    WebhookConfig::new("https://example.com/hooks/hunter2", SECRET)
}

#[test]
fn each_problem_is_named_with_its_field_and_without_a_secret() {
    let check = |config: WebhookConfig, expected: &[&str]| {
        let found = problems(&config);
        assert_eq!(found, expected);
        for shown in found.into_iter().chain([format!("{config:?}"), format!("{config:#?}")]) {
            for secret in ["hunter2", SECRET] {
                assert!(!shown.contains(secret), "{shown}");
            }
        }
    };
    check(valid(), &[]);
    check(
        WebhookConfig::default(),
        &[
            "url: must look like https://host/path",
            "secret: is missing; set it, or signing = \"none\" for an endpoint that needs no signature",
        ],
    );
    check(WebhookConfig::new("https://h", "").unsigned(), &[]);
    check(valid().unsigned(), &["secret: is not used with signing = \"none\""]);
    check(
        WebhookConfig::new("https://h", "hunter2"),
        &["secret: must begin with `whsec_`: only symmetric secrets of Standard Webhooks are supported"],
    );
    check(
        WebhookConfig::new("https://u:hunter2@h", SECRET),
        &["url: must not hold a user or password; set `authorization`"],
    );
    check(
        valid()
            .with_authorization("Bearer hunter2\r\nx: y")
            .with_header("x-key", "hunter2\n2")
            .with_request_timeout(Duration::ZERO)
            .with_connect_timeout(Duration::from_secs(3601))
            .with_max_in_flight(0)
            .with_max_message_bytes(0),
        &[
            "authorization: must be printable ASCII, and not empty",
            "headers: the value of `x-key` must be printable ASCII, and not empty",
            "request_timeout: must be 100ms to 1h, got 0s",
            "connect_timeout: must be 100ms to 1h, got 3601s",
            "max_in_flight: must be 1 to 1024, got 0",
            "max_message_bytes: must be 1B to 512MiB, got 0 bytes",
        ],
    );
    for (name, problem) in [
        ("a b", "headers: `a b` is no header name"),
        ("Authorization", "headers: `Authorization` stands in the field `authorization`"),
        ("Event-Id", "headers: `Event-Id` is set by the publisher"),
        ("Content-Type", "headers: `Content-Type` is set by the publisher"),
        ("Host", "headers: `Host` is set by the publisher"),
        ("webhook-id", "headers: `webhook-id` is set by the publisher"),
        (
            "webhook_signature",
            "headers: `webhook_signature` is the same as `webhook-signature` to many receivers, which the publisher sets",
        ),
        (
            "Content_Length",
            "headers: `Content_Length` is the same as `content-length` to many receivers, which the publisher sets",
        ),
    ] {
        check(valid().with_header(name, "hunter2"), &[problem]);
    }
    check(valid().with_header("x-key", "a").with_header("X-Key", "b"), &["headers: `x-key` stands there twice"]);
    check(valid().with_header("User-Agent", "shop/1").with_authorization("Bearer hunter2"), &[]);
    let half = WebhookConfig { cert_file: Some("c.pem".into()), ..valid() };
    check(half, &["cert_file: goes with key_file: set both or none"]);
}

#[test]
fn http_is_for_this_machine_unless_it_is_allowed() {
    let http = |url: &str| WebhookConfig::new(url, SECRET);
    let check = |config: WebhookConfig, expected: &[&str], reach: Option<Reach>| {
        assert_eq!(problems(&config), expected);
        assert_eq!(config.check_connecting().ok().map(|(reach, _)| reach), reach);
    };
    let far = "url: must be https:// unless the host is localhost; plain_http = \"anywhere\" allows it, unencrypted";
    for url in
        ["http://localhost:8080", "http://LOCALHOST", "http://127.0.0.1:1/x", "http://127.1.2.3", "http://[::1]:1"]
    {
        check(http(url), &[], Some(Reach::Loopback));
    }
    for url in ["http://example.com", "http://10.0.0.1", "http://[fd00::1]/", "http://localhost.example.com"] {
        check(http(url), &[far], None);
        check(http(url).with_plain_http(PlainHttp::Anywhere), &[], Some(Reach::Anywhere));
    }
    check(
        http("http://localhost").with_ca_file("ca.pem"),
        &["url: must be https:// when ca_file, cert_file or key_file is set"],
        None,
    );
}

#[test]
fn an_address_that_is_refused_is_refused_at_the_start() {
    let check = |url: &str, problem: Option<&str>| {
        let config = WebhookConfig::new(url, SECRET).with_private_addresses(PrivateAddresses::Refuse);
        assert_eq!(problems(&config), Vec::from_iter(problem), "{url}");
    };
    let tail = "which private_addresses = \"refuse\" excludes";
    check("https://8.8.8.8/", None);
    check("https://example.com/", None);
    check("https://127.0.0.1/", Some(&format!("url: is at a loopback address, {tail}")));
    check("http://127.0.0.1/", Some(&format!("url: is at a loopback address, {tail}")));
    check("https://[::ffff:10.0.0.1]/", Some(&format!("url: is at a private address, {tail}")));
    check("https://[fe80::1]/", Some(&format!("url: is at a link-local address, {tail}")));
}

#[test]
fn it_reads_units_and_words_and_refuses_unknown_keys() {
    let read = |json: &str| serde_json::from_str::<WebhookConfig>(json);
    let config = read(
        r#"{"url":"https://h","request_timeout":"2s","max_message_bytes":"64KiB","private_addresses":"refuse",
            "plain_http":"anywhere","signing":"none","headers":{"x-key":"k"}}"#,
    )
    .unwrap();
    assert_eq!((config.request_timeout, config.max_message_bytes), (Duration::from_secs(2), 65_536));
    assert_eq!(config.private_addresses, PrivateAddresses::Refuse);
    assert_eq!((config.plain_http, config.signing), (PlainHttp::Anywhere, Signing::None));
    assert_eq!(config.connect_timeout, DEFAULT_CONNECT_TIMEOUT);
    assert_eq!(problems(&config), [""; 0]);
    assert!(read(r#"{"uri":"https://h"}"#).unwrap_err().to_string().contains("unknown field `uri`"));
    assert!(read(r#"{"request_timeout":2}"#).unwrap_err().to_string().contains("a duration with its unit"));
    assert!(read(r#"{"private_addresses":"maybe"}"#).unwrap_err().to_string().contains("unknown variant `maybe`"));
}
