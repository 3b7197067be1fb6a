//! The URL that events go to: one host, and a path that may hold fields of the event.

use std::borrow::Cow;
use std::net::IpAddr;

use hyper::Uri;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use outbox_core::wire::percent_encode;
use outbox_core::{Envelope, TopicSyntax, TopicTemplate};
use tokio_rustls::rustls::pki_types::ServerName;

/// RFC 9110, section 4.1: recipients should take at least 8000 octets; more is each receiver's own choice.
const MAX_PATH_BYTES: usize = 8000;

/// For one placeholder: every ASCII character is encoded that is not `unreserved` by RFC 3986. White space, control
/// characters and `%` are encoded by the template itself, other characters by [`percent_encode`].
const IN_A_SEGMENT: TopicSyntax = TopicSyntax {
    separator: Some('/'),
    wildcards: &[
        '!', '"', '#', '$', '&', '\'', '(', ')', '*', '+', ',', ':', ';', '<', '=', '>', '?', '@', '[', '\\', ']', '^',
        '`', '{', '|', '}',
    ],
    max_bytes: MAX_PATH_BYTES,
};

/// A parsed URL whose path may hold placeholders.
#[derive(Clone)]
pub(crate) struct Endpoint {
    scheme: Scheme,
    authority: Authority,
    path: Vec<Part>,
    query: String,
}

#[derive(Clone)]
enum Part {
    Literal(String),
    Field(TopicTemplate),
}

impl Endpoint {
    /// Parses a URL. A problem is told without showing the URL, whose path and query may be secret.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        const SHAPE: &str = "must look like https://host/path";
        let (scheme, rest) = url.split_once("://").ok_or(SHAPE)?;
        let scheme = match scheme {
            "https" => Scheme::HTTPS,
            "http" => Scheme::HTTP,
            _ => return Err("must be https:// or http://".to_owned()),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if authority.contains(['{', '}']) {
            return Err("must name one host: fields of the event are allowed in the path only".to_owned());
        }
        if authority.contains('@') {
            return Err("must not hold a user or password; set `authorization`".to_owned());
        }
        let authority = authority.parse::<Authority>().map_err(|_| SHAPE)?;
        let endpoint = Self { scheme, authority, path: Vec::new(), query: String::new() };
        if ServerName::try_from(endpoint.host()).is_err() {
            return Err("must name a host or its address".to_owned());
        }
        // The parser takes anything for a port, and none for one that is no number.
        let port = endpoint.authority.as_str().strip_prefix(endpoint.authority.host()).unwrap_or_default();
        if !port.is_empty() && endpoint.authority.port_u16().is_none_or(|port| port == 0) {
            return Err("must have a port of 1 to 65535, or none".to_owned());
        }
        if rest.contains('#') {
            return Err("must not have a fragment (`#`): it is never sent".to_owned());
        }
        let (path, query) = rest.split_once('?').map_or((rest, ""), |(path, query)| (path, query));
        if query.contains(['{', '}']) {
            return Err("must not have fields of the event in its query: they are allowed in the path only".to_owned());
        }
        let path = parts(if path.is_empty() { "/" } else { path })?;
        let literals = path.iter().filter_map(|part| match part {
            Part::Literal(text) => Some(text.as_str()),
            Part::Field(_) => None,
        });
        for text in literals.chain([query]) {
            if !is_encoded(text) {
                return Err("has a character that must be percent-encoded".to_owned());
            }
        }
        let endpoint = Self { path, query: query.to_owned(), ..endpoint };
        let template = endpoint.joined(|field| Ok::<_, &str>(Cow::Borrowed(field.as_str())))?;
        if template.len() > MAX_PATH_BYTES {
            return Err(format!("must have at most {MAX_PATH_BYTES} bytes after the host, got {}", template.len()));
        }
        if climbs(&template) {
            return Err("must not have `.` or `..` as a segment of its path".to_owned());
        }
        Ok(endpoint)
    }

    /// Whether the connection is encrypted.
    pub(crate) fn is_https(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// The host as the name server takes it: without the brackets of an IPv6 address.
    pub(crate) fn host(&self) -> &str {
        let host = self.authority.host();
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// The host as an address, when it is one.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.host().parse().ok()
    }

    pub(crate) fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(if self.is_https() { 443 } else { 80 })
    }

    /// Scheme, host and port: what may be shown of the URL.
    pub(crate) fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.authority)
    }

    /// Everything of the URL that may be secret, in pieces: it must not stand in a text.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let literals = self.path.iter().filter_map(|part| match part {
            Part::Literal(text) => Some(text.as_str()),
            Part::Field(_) => None,
        });
        literals.flat_map(|text| text.split('/')).chain(self.query.split(['&', '='])).map(str::to_owned).collect()
    }

    /// Whether every event goes to the same URL.
    pub(crate) fn is_static(&self) -> bool {
        self.path.iter().all(|part| matches!(part, Part::Literal(_)))
    }

    /// The URL of one event.
    ///
    /// # Errors
    /// Why this event can't have one.
    pub(crate) fn uri(&self, event: &Envelope) -> Result<Uri, String> {
        let path = self.joined(|field| {
            field.render(event).map(|value| Cow::Owned(encode_rest(&value))).map_err(|error| error.to_string())
        })?;
        if path.len() > MAX_PATH_BYTES {
            return Err(format!("its path has {} bytes, {MAX_PATH_BYTES} are allowed", path.len()));
        }
        if climbs(&path) {
            return Err(
                "it would make `.` or `..` a segment of the path, which receivers take for a step up".to_owned()
            );
        }
        let path: PathAndQuery = path.parse().map_err(|_| "its path is not valid in a URL".to_owned())?;
        let uri = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone()).path_and_query(path);
        uri.build().map_err(|_| "its path is not valid in a URL".to_owned())
    }

    /// What the relay pauses when the endpoint refuses: the URL with `*` for each text of its path that is the
    /// operator's own, since some services put a secret there. Events with the same URL have the same topic, others
    /// another.
    pub(crate) fn topic(&self, event: &Envelope) -> String {
        self.masked(|field| field.render(event).map_or_else(|_| "*".to_owned(), |value| encode_rest(&value)))
    }

    /// The topic of a template: placeholders as they were written.
    pub(crate) fn shown(&self) -> String {
        self.masked(|field| field.as_str().to_owned())
    }

    fn masked(&self, field: impl Fn(&TopicTemplate) -> String) -> String {
        let mut shown = self.origin();
        for part in &self.path {
            match part {
                Part::Literal(text) => {
                    for (at, piece) in text.split('/').enumerate() {
                        shown.push_str(if at > 0 { "/" } else { "" });
                        shown.push_str(if piece.is_empty() { "" } else { "*" });
                    }
                }
                Part::Field(template) => shown.push_str(&field(template)),
            }
        }
        shown
    }

    fn joined<'a, E>(&'a self, field: impl Fn(&'a TopicTemplate) -> Result<Cow<'a, str>, E>) -> Result<String, E> {
        let mut path = String::new();
        for part in &self.path {
            match part {
                Part::Literal(text) => path.push_str(text),
                Part::Field(template) => path.push_str(&field(template)?),
            }
        }
        if !self.query.is_empty() {
            path.push('?');
            path.push_str(&self.query);
        }
        Ok(path)
    }
}

/// Cuts a path into its own text and its placeholders.
fn parts(path: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        let end = match rest.strip_prefix('{') {
            Some(inner) => inner.find('}').map(|end| end + 2).ok_or("has a `{` without `}` in its path")?,
            None => rest.find('{').unwrap_or(rest.len()),
        };
        let (part, after) = rest.split_at(end);
        rest = after;
        parts.push(if part.starts_with('{') {
            Part::Field(TopicTemplate::parse(part, IN_A_SEGMENT).map_err(|error| error.to_string())?)
        } else {
            Part::Literal(part.to_owned())
        });
    }
    Ok(parts)
}

/// Encodes what the template left: characters beyond ASCII. `%` is there already, as the sign of what is encoded.
fn encode_rest(value: &str) -> String {
    value.split('%').map(|piece| percent_encode(piece, |c| c.is_ascii())).collect::<Vec<_>>().join("%")
}

/// Whether a text of the operator's own consists of what RFC 3986 allows in a path or query.
fn is_encoded(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.iter().enumerate().all(|(at, byte)| match byte {
        b'%' => bytes.get(at + 1..at + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)),
        _ => byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?".contains(byte),
    })
}

/// Whether a segment of the path is a step to itself or up, also when encoded.
fn climbs(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or(path);
    path.split('/').any(|segment| {
        let plain = segment.replace("%2e", ".").replace("%2E", ".");
        plain == "." || plain == ".."
    })
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;
