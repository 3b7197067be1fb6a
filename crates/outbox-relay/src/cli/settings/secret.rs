//! A URL that may hold a password.

use std::fmt;

/// Shows itself without what could be a secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SecretUrl(String);

impl SecretUrl {
    pub(crate) fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }
}

/// Scheme, user, host, port and path. The password becomes `***`, and so does every query: drivers take passwords
/// there too. Whatever does not look like a URL is hidden in whole.
impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((scheme, rest)) = self.0.split_once("://") else { return f.write_str("***") };
        // A raw `@`, `/`, `?` or `#` in a password must not show a part of it: the last `@` ends the credentials.
        let (credentials, rest) = rest.rsplit_once('@').map_or((None, rest), |(left, right)| (Some(left), right));
        write!(f, "{scheme}://")?;
        if let Some(credentials) = credentials {
            let (user, password) = credentials.split_once(':').map_or((credentials, ""), |(user, _)| (user, ":***"));
            // An `@` far behind the address, in a query say: what stands before it is no user.
            let user = if user.contains(['/', '?', '#']) { "***" } else { user };
            write!(f, "{user}{password}@")?;
        }
        match rest.split_once(['?', '#']) {
            Some((address, _)) => write!(f, "{address}?***"),
            None => f.write_str(rest),
        }
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_shows() {
        let check = |url: &str, shown: &str| {
            assert_eq!(SecretUrl::new(url).to_string(), shown);
            assert_eq!(format!("{:?}", SecretUrl::new(url)), shown);
        };
        check("postgres://relay@localhost/app", "postgres://relay@localhost/app");
        check("postgres://localhost", "postgres://localhost");
        check("postgres://relay:geheim@localhost:5432/app", "postgres://relay:***@localhost:5432/app");
        check("amqp://u:p@ss:w/or?d#@host/%2f", "amqp://u:***@host/%2f");
        check("postgres://host/app?user=u&password=geheim", "postgres://host/app?***");
        check("postgres://u:geheim@/app?host=/run/pg@1", "postgres://u:***@1");
        check("postgres://host/app?password=geheim@1", "postgres://***@1");
        check("postgres://host/app?password=geheim:1@1", "postgres://***:***@1");
        check("geheim", "***");
    }
}
