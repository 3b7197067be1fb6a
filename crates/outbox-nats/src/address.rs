//! The servers of a URL list, and the login that stands in it. Pure.

use std::borrow::Cow;

use async_nats::ServerAddr;

use crate::login::Login;

/// Where to connect. The addresses hold no user and no password, so that nobody can log them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Servers {
    pub(crate) addresses: Vec<ServerAddr>,
    /// All of them are `tls://`.
    pub(crate) tls: bool,
}

impl Servers {
    /// Hosts and ports for people.
    pub(crate) fn shown(&self) -> String {
        let place = |address: &ServerAddr| format!("{}:{}", address.host(), address.port());
        self.addresses.iter().map(place).collect::<Vec<_>>().join(", ")
    }
}

/// What is expected of the field; names no part of the URL.
const EXPECTED: &str = "must look like nats://user:password@host:4222 or tls://host:4222, several separated by commas";

/// Reads `nats://user:password@host:port`, `tls://…`, several separated by commas.
///
/// # Errors
/// What is wrong, without the URL.
pub(crate) fn parse(urls: &str) -> Result<(Servers, Option<Login>), String> {
    let (mut addresses, mut schemes, mut login) = (Vec::new(), Vec::new(), None);
    for url in urls.split(',').map(str::trim) {
        if !outbox_core::is_percent_encoded(url) {
            let problem = "has a `%` that is not followed by two hexadecimal digits; write `%25` for the sign itself";
            return Err(problem.to_owned());
        }
        let (scheme, _) = url.split_once("://").ok_or(EXPECTED)?;
        let address: ServerAddr = url.parse().map_err(|_| EXPECTED)?;
        let is_bare = matches!(address.clone().into_inner().path(), "" | "/");
        if !matches!(scheme, "nats" | "tls") || address.host().is_empty() || !is_bare || url.contains(['?', '#']) {
            return Err(EXPECTED.to_owned());
        }
        let found = login_of(&address)?;
        if found.is_some() && login.is_some() && found != login {
            return Err("must name the same user and password for all servers".to_owned());
        }
        login = login.or(found);
        let host = match address.host() {
            host if host.contains(':') => Cow::Owned(format!("[{host}]")),
            host => Cow::Borrowed(host),
        };
        let bare = format!("{scheme}://{host}:{}", address.port());
        addresses.push(bare.parse().map_err(|_| EXPECTED)?);
        schemes.push(scheme);
    }
    let tls = schemes.contains(&"tls");
    if tls && schemes.contains(&"nats") {
        return Err("must be tls:// for all servers or for none".to_owned());
    }
    Ok((Servers { addresses, tls }, login))
}

fn login_of(address: &ServerAddr) -> Result<Option<Login>, String> {
    let decode = |text: &str| decoded(text).ok_or("user and password must be UTF-8, percent-encoded");
    Ok(match (address.username(), address.password()) {
        (None, None) => None,
        (None, Some(_)) => return Err("has a password without a user".to_owned()),
        // As the tools of NATS read it: a name alone is a token.
        (Some(token), None) => Some(Login::Token(decode(token)?)),
        (Some(user), Some(password)) => Some(Login::Password { user: decode(user)?, password: decode(password)? }),
    })
}

/// A text of a URL without its percent-encoding; `None` when it is not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let encoded = (*first == b'%').then(|| after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok())).flatten();
        match encoded.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lose_their_login() {
        let check = |urls: &str, places: &str, tls: bool, login: Option<Login>| {
            let (servers, found) = parse(urls).unwrap();
            assert_eq!((servers.shown().as_str(), servers.tls, found), (places, tls, login), "{urls}");
            let bare = servers.addresses.iter().all(|address| !address.has_user_pass() && address.password().is_none());
            assert!(bare, "{servers:?}");
        };
        let password =
            |user: &str, password: &str| Some(Login::Password { user: user.to_owned(), password: password.to_owned() });
        check("nats://localhost", "localhost:4222", false, None);
        check("tls://a:4333", "a:4333", true, None);
        check("nats://u:p@a:1, nats://b:2", "a:1, b:2", false, password("u", "p"));
        check("nats://u:p@a:1,nats://u:p@b:2", "a:1, b:2", false, password("u", "p"));
        check("nats://u%40x:p%25%3Aq@[::1]:4222", "::1:4222", false, password("u@x", "p%:q"));
        check("nats://s3cr3t@a/", "a:4222", false, Some(Login::Token("s3cr3t".to_owned())));
    }

    #[test]
    fn what_is_no_address_is_refused_without_showing_it() {
        let check = |urls: &str, problem: &str| assert_eq!(parse(urls).unwrap_err(), problem, "{urls}");
        for urls in ["", "localhost:4222", "http://a", "ws://a", "nats://", "nats://a/x", "nats://a?b=c", "nats://a,"] {
            check(urls, EXPECTED);
        }
        check("nats://a,tls://b", "must be tls:// for all servers or for none");
        check("nats://u:p@a,nats://u:q@b", "must name the same user and password for all servers");
        check("nats://:p@a", "has a password without a user");
        check("nats://u:%ff@a", "user and password must be UTF-8, percent-encoded");
    }

    #[test]
    fn only_whole_escapes_are_decoded() {
        let check = |text: &str, plain: Option<&str>| assert_eq!(decoded(text).as_deref(), plain);
        check("a%2Fb%20", Some("a/b "));
        check("100%", Some("100%"));
        check("%4", Some("%4"));
        check("%zz%", Some("%zz%"));
        check("%C3%BC", Some("ü"));
        check("%C3", None);
    }
}
