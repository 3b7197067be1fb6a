//! The body of a message: SQS takes text of the characters of XML 1.0, at least one. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outbox_core::PublishError;

use crate::encode::rejected;

/// Whether SQS takes a character, in bodies as in the values of attributes:
/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html>.
pub(crate) const fn is_xml(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..='\u{10ffff}')
}

/// A body as SQS takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    /// The text itself, but for what JSON can escape.
    Text(String),
    /// What can't be text.
    Base64(String),
}

/// What the bytes are, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// The text of one JSON value: a character may be written as its escape.
    Json,
    /// Byte for byte.
    Opaque,
}

/// Makes a body.
///
/// # Errors
/// `Rejected` for an empty one, which base64 can't mend.
pub(crate) fn body(bytes: &[u8], content: Content) -> Result<Body, PublishError> {
    if bytes.is_empty() {
        return Err(rejected("the payload is empty, SQS takes no empty message".to_owned()));
    }
    let text = match (std::str::from_utf8(bytes), content) {
        (Ok(text), _) if text.chars().all(is_xml) => Some(text.to_owned()),
        (Ok(text), Content::Json) => Some(escape_json(text)).filter(|text| text.chars().all(is_xml)),
        _ => None,
    };
    Ok(text.map_or_else(|| Body::Base64(STANDARD.encode(bytes)), Body::Text))
}

/// Writes the two characters that JSON allows unescaped and XML does not as their escapes. In valid JSON they stand
/// only inside strings, and never right after a backslash that escapes, so the value stays equal.
pub(crate) fn escape_json(text: &str) -> String {
    text.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_text_stays_and_what_is_not_is_encoded() {
        let check = |bytes: &[u8], content, expected: Body| assert_eq!(body(bytes, content).unwrap(), expected);
        let text = |text: &str| Body::Text(text.to_owned());
        let base64 = |text: &str| Body::Base64(text.to_owned());
        check(b"x", Content::Opaque, text("x"));
        check("zażółć \u{10ffff}\t\r\n".as_bytes(), Content::Opaque, text("zażółć \u{10ffff}\t\r\n"));
        check("\u{7f}\u{85}\u{fffd}\u{e000}".as_bytes(), Content::Opaque, text("\u{7f}\u{85}\u{fffd}\u{e000}"));
        check("\u{ffff}".as_bytes(), Content::Opaque, base64("77+/"));
        check(b"\x07", Content::Opaque, base64("Bw=="));
        check(b"\x0b", Content::Json, base64("Cw=="));
        check(&[1, 0xff, b'\n', 0], Content::Opaque, base64("Af8KAA=="));
        check(&[0xff], Content::Json, base64("/w=="));
        check("\"\u{ffff}\u{fffe}\"".as_bytes(), Content::Json, text(r#""\uffff\ufffe""#));
        check("\"\\\\\u{ffff}\"".as_bytes(), Content::Json, text(r#""\\\uffff""#));
        check("\"\u{ffff}\u{7}\"".as_bytes(), Content::Json, base64("Iu+/vwci"));
    }

    #[test]
    fn escaped_json_stays_equal() {
        let value = serde_json::json!({ "a\u{ffff}": ["\u{fffe}", "\\\u{ffff}", "\"\u{ffff}", 1.10] });
        let Body::Text(escaped) = body(value.to_string().as_bytes(), Content::Json).unwrap() else { panic!("no text") };
        assert!(escaped.chars().all(is_xml));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }

    #[test]
    fn an_empty_body_is_rejected() {
        for content in [Content::Json, Content::Opaque] {
            let error = body(b"", content).unwrap_err();
            assert_eq!(error.to_string(), "rejected: the payload is empty, SQS takes no empty message");
        }
    }
}
