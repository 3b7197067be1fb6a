//! Who is to blame when an event was not confirmed, and what that costs.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// The longest text of an error that is kept, in bytes: what the `last_error` column may hold.
pub(crate) const MAX_ERROR_BYTES: usize = 4096;

/// What went wrong with one event, chosen so that the relay blames the right thing and charges the right budget.
///
/// The relay's answer to each kind is a promise of this project; a publisher must choose with care.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing was sent: no connection, no login, no channel. Free; opens the destination's breaker.
    Unavailable,
    /// The broker asks for less: blocked, quota, queue full. Free; slows the destination.
    Throttled,
    /// Sent, and the answer was lost or late. It may or may not have arrived. Free; the same id is sent again.
    Unconfirmed,
    /// The destination is missing or refuses us: exchange, queue, stream, permission, no route. Free; pauses the
    /// topic (or the whole destination when the error names none) until it is mended.
    Misconfigured,
    /// These bytes can never pass: size, header, key. A dead letter at once.
    Rejected,
    /// Any other refusal of this event. Charged: one attempt.
    Failed,
}

impl ErrorKind {
    /// The name in logs, metrics and the table: lower case, stable.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Throttled => "throttled",
            Self::Unconfirmed => "unconfirmed",
            Self::Misconfigured => "misconfigured",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why one event was not confirmed.
#[derive(Debug, Clone)]
pub struct PublishError {
    kind: ErrorKind,
    detail: String,
    topic: Option<String>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl PublishError {
    /// An error of a kind with a sentence for the operator: lower case, no secrets, no payload.
    ///
    /// Control characters become spaces and the text is cut at 4 KiB, the limit of the table's column.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: clean(detail.into()), topic: None, source: None }
    }

    /// Keeps the error that caused this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Names the topic at fault, so that only this topic pauses. Meaningful for [`ErrorKind::Misconfigured`].
    ///
    /// It must equal what [`Publisher::topic`](crate::Publisher::topic) answers for the event.
    #[must_use]
    pub fn with_topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Who is to blame.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The topic at fault; `None` means the whole destination.
    #[must_use]
    pub fn topic(&self) -> Option<&str> {
        self.topic.as_deref()
    }

    /// The sentence for the operator with all causes, on one line, at most 4 KiB.
    #[must_use]
    pub fn report(&self) -> String {
        let mut text = self.detail.clone();
        let mut cause = self.source();
        while let Some(error) = cause {
            let message = error.to_string();
            if !text.contains(&message) {
                text.push_str(": ");
                text.push_str(&message);
            }
            cause = error.source();
        }
        clean(text)
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.detail)
    }
}

impl Error for PublishError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|error| error as &(dyn Error + 'static))
    }
}

/// Stands at the end of a text that was cut. In ASCII: not every database has more.
const CUT: &str = "...";

fn clean(mut text: String) -> String {
    if text.contains(char::is_control) {
        text = text.replace(char::is_control, " ");
    }
    if text.len() > MAX_ERROR_BYTES {
        let cut = text.floor_char_boundary(MAX_ERROR_BYTES - CUT.len());
        text.truncate(cut);
        text.push_str(CUT);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_and_says_so_in_ascii() {
        let check = |detail: String, bytes: usize, end: &str| {
            let report = PublishError::new(ErrorKind::Failed, detail).report();
            assert_eq!(report.len(), bytes);
            assert!(report.ends_with(end), "{end}");
        };
        check("x".repeat(MAX_ERROR_BYTES), MAX_ERROR_BYTES, "x");
        check("x".repeat(MAX_ERROR_BYTES + 1), MAX_ERROR_BYTES, "x...");
        check("ż".repeat(MAX_ERROR_BYTES), MAX_ERROR_BYTES - 1, "ż...");
        check("a\nb".to_owned(), 3, "a b");
    }
}
