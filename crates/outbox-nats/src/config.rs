//! What can be set about the publisher, with the reason for each default.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use outbox_core::wire::Format;
use outbox_core::{TopicSyntax, TopicTemplate, units};
use serde::Deserialize;

use crate::address::{self, Servers};
use crate::error::ConfigError;
use crate::login::Login;

/// Where a server listens when nothing is said: this machine, the usual port.
pub const DEFAULT_URL: &str = "nats://localhost:4222";
/// Two tokens, so that streams and consumers can take aggregate types, event types or both.
pub const DEFAULT_TOPIC: &str = "{aggregate_type}.{event_type}";
/// A loaded stream answers within seconds; twice it and one connect time-out stay below the relay's 30 s.
pub const DEFAULT_CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
/// A healthy server greets within milliseconds; five seconds also cover a slow name server.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The server's own default for `max_payload`: <https://docs.nats.io/running-a-nats-service/configuration>.
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// A stream that flushes each message to disk stores about 1250 a second: a thousand are answered in one.
pub const DEFAULT_MAX_IN_FLIGHT: usize = 1000;

/// What a server reads as one line of the protocol (`max_control_line`, 4096 by default), less the reply subject and
/// the two sizes that stand beside the subject. A longer line closes the connection.
pub(crate) const MAX_SUBJECT_BYTES: usize = 4000;
/// The client library keeps as many answers of a subscription.
const MAX_IN_FLIGHT: usize = 65_536;
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// A server takes no larger `max_payload`.
const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

/// A space ends a subject in the protocol, so it is refused in templates like a wildcard.
const SUBJECT: TopicSyntax =
    TopicSyntax { separator: Some('.'), wildcards: &['*', '>', ' '], max_bytes: MAX_SUBJECT_BYTES };

/// How to reach the servers and where events go. Durations and sizes are texts with units when deserialized.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct NatsConfig {
    /// `nats://user:password@host:port`, or `tls://` for TLS from the start; several servers of one cluster separated
    /// by commas. User and password are URL-encoded; a name alone is a token. Default [`DEFAULT_URL`].
    pub url: String,
    /// Template of the subject, at most 4000 bytes when rendered. A stream must take it: the publisher never declares
    /// any. Default [`DEFAULT_TOPIC`].
    pub topic: String,
    /// How events are written. Not a key of this table: a route sets it. Default [`Format::Plain`].
    #[serde(skip)]
    pub format: Format,
    /// Name of the only stream that may take the events; another one refuses them. Default none: any stream.
    pub expected_stream: Option<String>,
    /// File with a user's JWT and seed (`nsc generate creds`), read again at each connect. Default none.
    pub creds_file: Option<PathBuf>,
    /// User; goes with `password` or `password_file`. Default none.
    pub user: Option<String>,
    /// Its password. Default none.
    pub password: Option<String>,
    /// File that holds the password, read again at each connect. Default none.
    pub password_file: Option<PathBuf>,
    /// Token instead of a user. Default none.
    pub token: Option<String>,
    /// File that holds the token, read again at each connect. Default none.
    pub token_file: Option<PathBuf>,
    /// PEM file of authorities to trust beside the system's. Needs `tls://`. Default none.
    pub ca_file: Option<PathBuf>,
    /// PEM file of the client certificate and its chain; goes with `key_file`. Default none.
    pub cert_file: Option<PathBuf>,
    /// PEM file of the client's private key; goes with `cert_file`. Default none.
    pub key_file: Option<PathBuf>,
    /// How long a sent event waits for the stream's acknowledgement before it counts as unconfirmed. Low: copies while
    /// the server is slow, which the stream drops only within its window. High: a lost answer is noticed late. Default
    /// [`DEFAULT_CONFIRM_TIMEOUT`].
    #[serde(deserialize_with = "units::duration")]
    pub confirm_timeout: Duration,
    /// How long a connection may take to open, all servers together; also how long a probe waits for its answer.
    /// Default [`DEFAULT_CONNECT_TIMEOUT`].
    #[serde(deserialize_with = "units::duration")]
    pub connect_timeout: Duration,
    /// The largest body that is sent; a larger event is rejected before sending. Headers and body together must fit the
    /// server's `max_payload` as well, which it tells by itself. Default [`DEFAULT_MAX_MESSAGE_BYTES`].
    #[serde(deserialize_with = "units::bytes")]
    pub max_message_bytes: usize,
    /// Events of all calls that may wait for an answer at once, 1 to 65536. Low: the round trip bounds the throughput.
    /// High: a slow stream answers the last ones too late. Default [`DEFAULT_MAX_IN_FLIGHT`].
    pub max_in_flight: usize,
}

impl Default for NatsConfig {
    fn default() -> Self {
        Self {
            url: DEFAULT_URL.to_owned(),
            topic: DEFAULT_TOPIC.to_owned(),
            format: Format::default(),
            expected_stream: None,
            creds_file: None,
            user: None,
            password: None,
            password_file: None,
            token: None,
            token_file: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            confirm_timeout: DEFAULT_CONFIRM_TIMEOUT,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            max_message_bytes: DEFAULT_MAX_MESSAGE_BYTES,
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
        }
    }
}

/// Shows everything but the URL, the user, the password and the token.
impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsConfig")
            .field("topic", &self.topic)
            .field("format", &self.format)
            .field("expected_stream", &self.expected_stream)
            .field("confirm_timeout", &self.confirm_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("max_in_flight", &self.max_in_flight)
            .finish_non_exhaustive()
    }
}

/// How to connect, as far as the config alone says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) servers: Servers,
    pub(crate) login: Login,
}

impl NatsConfig {
    /// The defaults for one server (or cluster) and subject.
    pub fn new(url: impl Into<String>, topic: impl Into<String>) -> Self {
        Self { url: url.into(), topic: topic.into(), ..Self::default() }
    }

    /// Sets the subject's template.
    #[must_use]
    pub fn with_topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = topic.into();
        self
    }

    /// Sets how events are written.
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Names the only stream that may take the events.
    #[must_use]
    pub fn with_expected_stream(mut self, stream: impl Into<String>) -> Self {
        self.expected_stream = Some(stream.into());
        self
    }

    /// Authenticates by a credentials file.
    #[must_use]
    pub fn with_creds_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.creds_file = Some(file.into());
        self
    }

    /// Authenticates by user and password.
    #[must_use]
    pub fn with_user_and_password(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self.password = Some(password.into());
        self
    }

    /// Authenticates by user and a password that stands in a file.
    #[must_use]
    pub fn with_user_and_password_file(mut self, user: impl Into<String>, file: impl Into<PathBuf>) -> Self {
        self.user = Some(user.into());
        self.password_file = Some(file.into());
        self
    }

    /// Authenticates by a token.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Authenticates by a token that stands in a file.
    #[must_use]
    pub fn with_token_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.token_file = Some(file.into());
        self
    }

    /// Trusts the authorities of a PEM file beside the system's.
    #[must_use]
    pub fn with_ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(file.into());
        self
    }

    /// Authenticates by a client certificate (PEM) and its private key (PEM).
    #[must_use]
    pub fn with_client_certificate(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.cert_file = Some(cert.into());
        self.key_file = Some(key.into());
        self
    }

    /// Sets how long a sent event waits for its acknowledgement.
    #[must_use]
    pub const fn with_confirm_timeout(mut self, timeout: Duration) -> Self {
        self.confirm_timeout = timeout;
        self
    }

    /// Sets how long a connection may take to open.
    #[must_use]
    pub const fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the largest body.
    #[must_use]
    pub const fn with_max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Sets how many events may wait for an answer at once.
    #[must_use]
    pub const fn with_max_in_flight(mut self, events: usize) -> Self {
        self.max_in_flight = events;
        self
    }

    /// Checks what concerns publishing and leaves out how to connect.
    pub(crate) fn check_publishing(&self) -> Result<TopicTemplate, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut need = |ok: bool, field: &'static str, problem: String| {
            if !ok {
                errors.push(ConfigError { field, problem });
            }
        };
        for (field, value) in [("confirm_timeout", self.confirm_timeout), ("connect_timeout", self.connect_timeout)] {
            let ok = (Duration::from_millis(100)..=MAX_TIMEOUT).contains(&value);
            need(ok, field, format!("must be 100ms to 1h, got {}", units::format_duration(value)));
        }
        need(
            (1..=MAX_MESSAGE_BYTES).contains(&self.max_message_bytes),
            "max_message_bytes",
            format!("must be 1B to 64MiB, got {} bytes", self.max_message_bytes),
        );
        need(
            (1..=MAX_IN_FLIGHT).contains(&self.max_in_flight),
            "max_in_flight",
            format!("must be 1 to {MAX_IN_FLIGHT}, got {}", self.max_in_flight),
        );
        if let Some(stream) = &self.expected_stream {
            let fits = |c: char| c.is_ascii_graphic() && !['.', '*', '>', '/', '\\'].contains(&c);
            need(
                !stream.is_empty() && stream.chars().all(fits),
                "expected_stream",
                "must be a stream's name: printable ASCII without blanks, `.`, `*`, `>`, `/` and `\\`".to_owned(),
            );
        }
        let topic = TopicTemplate::parse(&self.topic, SUBJECT);
        match &topic {
            Err(error) => need(false, "topic", error.to_string()),
            Ok(_) => need(
                has_no_empty_token(&self.topic),
                "topic",
                format!("must hold no empty token (no `.` at its ends, no `..`), got `{}`", self.topic),
            ),
        }
        match topic {
            Ok(topic) if errors.is_empty() => Ok(topic),
            _ => Err(errors),
        }
    }

    /// Checks how to connect. No error text shows a URL or a secret.
    pub(crate) fn check_connecting(&self) -> Result<Access, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut refuse = |field: &'static str, problem: &str| {
            errors.push(ConfigError { field, problem: problem.to_owned() });
        };
        let parsed = address::parse(&self.url);
        match &parsed {
            Err(problem) => refuse("url", problem),
            Ok((servers, _)) => {
                if !servers.tls && (self.ca_file.is_some() || self.cert_file.is_some()) {
                    refuse("url", "must be tls:// when ca_file or cert_file is set");
                }
            }
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            refuse("cert_file", "goes with key_file: set both or none");
        }
        let in_url = parsed.as_ref().ok().and_then(|(_, login)| login.clone());
        let login = self.login(in_url).unwrap_or_else(|(field, problem)| {
            refuse(field, &problem);
            Login::Anonymous
        });
        match parsed {
            Ok((servers, _)) if errors.is_empty() => Ok(Access { servers, login }),
            _ => Err(errors),
        }
    }

    /// The one way to log in that the config names.
    fn login(&self, in_url: Option<Login>) -> Result<Login, (&'static str, String)> {
        let user = match (&self.user, &self.password, &self.password_file) {
            (None, None, None) => None,
            (Some(user), Some(password), None) => {
                Some(Login::Password { user: user.clone(), password: password.clone() })
            }
            (Some(user), None, Some(file)) => Some(Login::PasswordFile { user: user.clone(), file: file.clone() }),
            _ => return Err(("user", "goes with either password or password_file".to_owned())),
        };
        let token = self.token.clone().map(Login::Token);
        let token_file = self.token_file.clone().map(Login::TokenFile);
        let creds = self.creds_file.clone().map(Login::CredsFile);
        let all = [
            ("creds_file", creds),
            ("user", user),
            ("token", token),
            ("token_file", token_file),
            ("the login in `url`", in_url),
        ];
        let mut given = all.into_iter().filter_map(|(name, login)| Some((name, login?))).collect::<Vec<_>>();
        match given.as_slice() {
            [] => Ok(Login::Anonymous),
            [_] => Ok(given.remove(0).1),
            // The first of them is a field of its own: only one can stand in the URL.
            [(first, _), others @ ..] => {
                let others: Vec<_> = others.iter().map(|(name, _)| *name).collect();
                Err((first, format!("is one login and {} another; keep one of them", others.join(" and "))))
            }
        }
    }
}

/// Fields of events are never empty, so only the template's own text can make an empty token.
fn has_no_empty_token(template: &str) -> bool {
    let (mut plain, mut inside) = (String::new(), false);
    for c in template.chars() {
        match c {
            '{' => inside = true,
            '}' => {
                inside = false;
                plain.push('x');
            }
            _ if inside => {}
            _ => plain.push(c),
        }
    }
    plain.split('.').all(|token| !token.is_empty())
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
