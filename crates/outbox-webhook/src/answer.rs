//! What an answer tells beside its status: when to come again, and a sentence for the operator. Pure.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use hyper::HeaderMap;
use hyper::header::{DATE, RETRY_AFTER};

/// As much of an answer's body as stands in an error: a sentence and its context.
pub(crate) const MAX_EXCERPT_BYTES: usize = 1024;
/// A text that repeats this many bytes of the event shows a part of its payload. Shorter ones are names and numbers
/// that an error must be able to name.
const ECHO_BYTES: usize = 12;
/// Shorter pieces of the config are words that stand in any text.
const MIN_SECRET_BYTES: usize = 8;

/// How long the endpoint asks to wait, by `Retry-After`: seconds, or a date.
///
/// A date is measured from the answer's own `Date`, so that two clocks need not agree.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    let date = headers.get(DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
    Some(until.duration_since(date.unwrap_or(now)).unwrap_or_default())
}

/// What of an answer's body may be shown: at most 1 KiB on one line, without a secret, and nothing when it repeats the
/// event.
pub(crate) fn excerpt(body: &[u8], event: &[u8], secrets: &[String]) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    let mut text = text.replace(|c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER, " ");
    if repeats(text.as_bytes(), event) {
        return Some("its text is not shown: it repeats the event".to_owned());
    }
    for secret in secrets.iter().filter(|secret| secret.len() >= MIN_SECRET_BYTES) {
        text = text.replace(secret.as_str(), "***");
    }
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // Cut last: half a secret would not be recognised.
    text.truncate(text.floor_char_boundary(MAX_EXCERPT_BYTES));
    (!text.is_empty()).then(|| format!("\"{text}\""))
}

fn repeats(text: &[u8], event: &[u8]) -> bool {
    let pieces: HashSet<&[u8]> = text.windows(ECHO_BYTES).collect();
    let all = !event.is_empty() && event.len() < ECHO_BYTES && event.len() > 3;
    (all && text.windows(event.len()).any(|piece| piece == event))
        || (!pieces.is_empty() && event.windows(ECHO_BYTES).any(|piece| pieces.contains(piece)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let check = |value: &str, date: Option<&str>, expected: Option<u64>| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            if let Some(date) = date {
                headers.insert(DATE, date.parse().unwrap());
            }
            assert_eq!(retry_after(&headers, now), expected.map(Duration::from_secs), "{value} {date:?}");
        };
        check("120", None, Some(120));
        check(" 0 ", None, Some(0));
        check("99999999999999999999999", None, Some(u64::MAX));
        check("Sun, 06 Nov 1994 08:50:37 GMT", None, Some(60));
        check("Sun, 06 Nov 1994 08:49:36 GMT", None, Some(0));
        // The receiver's clock is a year ahead: its own date counts.
        check("Mon, 06 Nov 1995 08:50:37 GMT", Some("Mon, 06 Nov 1995 08:50:07 GMT"), Some(30));
        check("Sun, 06 Nov 1994 08:50:37 GMT", Some("nonsense"), Some(60));
        check("-1", None, None);
        check("1.5", None, None);
        check("soon", None, None);
        check("", None, None);
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn an_excerpt_shows_neither_secrets_nor_the_event() {
        let secrets = ["sk-hunter2hunter2".to_owned(), "v1".to_owned()];
        let check = |body: &[u8], event: &[u8], expected: Option<&str>| {
            assert_eq!(excerpt(body, event, &secrets).as_deref(), expected);
        };
        check(b"", b"event", None);
        check(b" \r\n\0 ", b"event", None);
        check(b"amount must\r\nbe\x1b[31m positive", b"{}", Some("\"amount must be [31m positive\""));
        check(b"bad key sk-hunter2hunter2 for v1", b"{}", Some("\"bad key *** for v1\""));
        check(b"\xff\xfenot utf-8", b"{}", Some("\"not utf-8\""));
        let hidden = Some("its text is not shown: it repeats the event");
        check(b"unexpected '4111 1111 1111 1111' here", br#"{"card":"4111 1111 1111 1111"}"#, hidden);
        check(b"unexpected pin-7788 here", b"pin-7788", hidden);
        check(b"unexpected pin", br#"{"pin":7788}"#, Some("\"unexpected pin\""));
        let long = excerpt("é".repeat(5000).as_bytes(), b"", &[]).unwrap();
        assert_eq!(long.len(), MAX_EXCERPT_BYTES + 2);
    }
}
