use std::time::SystemTime;

use outbox_core::{EventId, Headers, Payload};

use super::*;

fn event(aggregate_id: &str) -> Envelope {
    Envelope {
        id: 1,
        event_id: EventId::from_uuid(uuid::Uuid::nil()),
        aggregate_type: "order".into(),
        aggregate_id: aggregate_id.into(),
        event_type: "placed".into(),
        payload: Payload::raw_json("{}"),
        headers: Headers::from([("tenant".into(), "a/b".into()), ("dot".into(), ".".into())]),
        created_at: SystemTime::UNIX_EPOCH,
    }
}

#[test]
fn data_never_leaves_its_segment() {
    let check = |url: &str, aggregate_id: &str, expected: &str| {
        let endpoint = Endpoint::parse(url).unwrap();
        assert_eq!(endpoint.uri(&event(aggregate_id)).unwrap().to_string(), expected);
    };
    check("https://h", "1", "https://h/");
    check("https://h/a//b/?x=%20&y", "1", "https://h/a//b/?x=%20&y");
    check("https://h?x=1", "1", "https://h/?x=1");
    check("http://h:8080/{aggregate_type}/{event_type}", "1", "http://h:8080/order/placed");
    check("https://h/{aggregate_id}?t=1", "a/b?c#d", "https://h/a%2Fb%3Fc%23d?t=1");
    check("https://h/{aggregate_id}", "../..", "https://h/..%2F..");
    check("https://h/{aggregate_id}", "..;x=1\\", "https://h/..%3Bx%3D1%5C");
    check("https://h/{aggregate_id}", "%2e%2e", "https://h/%252e%252e");
    check("https://h/{aggregate_id}", "a b\r\nHost: x", "https://h/a%20b%0D%0AHost%3A%20x");
    check("https://h/{aggregate_id}", "zażółć-._~", "https://h/za%C5%BC%C3%B3%C5%82%C4%87-._~");
    check("https://h/{aggregate_id}", "\u{7f}\"<>[]^`{|}", "https://h/%7F%22%3C%3E%5B%5D%5E%60%7B%7C%7D");
    check("https://h/{header:tenant}-x", "1", "https://h/a%2Fb-x");
    check("https://[::1]:8443/x", "1", "https://[::1]:8443/x");
}

#[test]
fn an_event_without_a_url_is_told_why() {
    let check = |url: &str, aggregate_id: &str, problem: &str| {
        let endpoint = Endpoint::parse(url).unwrap();
        assert_eq!(endpoint.uri(&event(aggregate_id)).unwrap_err(), problem);
    };
    let climbs = "it would make `.` or `..` a segment of the path, which receivers take for a step up";
    check("https://h/{aggregate_id}/x", "..", climbs);
    check("https://h/{aggregate_id}", ".", climbs);
    check("https://h/.{header:dot}/x", "1", climbs);
    check("https://h/{header:no}", "1", "the topic template needs header `no`, which the event does not have");
    check("https://h/{aggregate_id}", &"é".repeat(1400), "its path has 8401 bytes, 8000 are allowed");
}

#[test]
fn bad_urls_are_refused_without_being_shown() {
    let check = |url: &str, problem: &str| {
        let found = Endpoint::parse(url).err();
        assert_eq!(found.as_deref(), Some(problem), "{url}");
    };
    check("", "must look like https://host/path");
    check("hunter2", "must look like https://host/path");
    check("ftp://h/", "must be https:// or http://");
    check("https://", "must look like https://host/path");
    for port in ["x", "", "0", "65536", "80x", "-1"] {
        check(&format!("https://h:{port}/"), "must have a port of 1 to 65535, or none");
    }
    check("https://[::1]:x/", "must have a port of 1 to 65535, or none");
    check("https://-h_/", "must name a host or its address");
    check("https://user:hunter2@h/", "must not hold a user or password; set `authorization`");
    check("https://{aggregate_id}.h/", "must name one host: fields of the event are allowed in the path only");
    check("https://h/#x", "must not have a fragment (`#`): it is never sent");
    check(
        "https://h/?x={aggregate_id}",
        "must not have fields of the event in its query: they are allowed in the path only",
    );
    check("https://h/{event_type", "has a `{` without `}` in its path");
    check("https://h/a}", "has a character that must be percent-encoded");
    check("https://h/a b", "has a character that must be percent-encoded");
    check("https://h/é", "has a character that must be percent-encoded");
    check("https://h/%zz", "has a character that must be percent-encoded");
    check("https://h/?q=%2", "has a character that must be percent-encoded");
    check("https://h/a/../b", "must not have `.` or `..` as a segment of its path");
    check("https://h/%2e%2E", "must not have `.` or `..` as a segment of its path");
    check(&format!("https://h/{}", "x".repeat(8000)), "must have at most 8000 bytes after the host, got 8001");
    assert!(Endpoint::parse("https://h/{evnt}").err().unwrap().starts_with("unknown placeholder `{evnt}`"));
}

#[test]
fn a_topic_hides_what_may_be_a_secret_and_tells_urls_apart() {
    let check = |url: &str, topic: &str, shown: &str| {
        let endpoint = Endpoint::parse(url).unwrap();
        assert_eq!((endpoint.topic(&event("7/8")).as_str(), endpoint.shown().as_str()), (topic, shown));
    };
    check("https://h:1/services/T0/hunter2?token=x", "https://h:1/*/*/*", "https://h:1/*/*/*");
    check("https://h", "https://h/", "https://h/");
    check(
        "https://h/hunter2/{aggregate_type}-x/{aggregate_id}",
        "https://h/*/order*/7%2F8",
        "https://h/*/{aggregate_type}*/{aggregate_id}",
    );
    let secrets = Endpoint::parse("https://h/a/hunter2/{event_type}?token=hunter3").unwrap().secrets();
    assert!(secrets.contains(&"hunter2".to_owned()) && secrets.contains(&"hunter3".to_owned()));
}
