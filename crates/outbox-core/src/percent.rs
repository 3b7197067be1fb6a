//! Percent-encoding of URLs. Pure.

/// Whether each `%` of a text is followed by two hexadecimal digits. Where one is not, parsers differ: some take it as it
/// stands, and a password that was meant literally becomes another one.
#[must_use]
pub fn is_percent_encoded(text: &str) -> bool {
    let is_hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    text.split('%').skip(1).all(|after| is_hex(after.as_bytes().first()) && is_hex(after.as_bytes().get(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percent_sign_needs_two_digits() {
        for whole in ["", "a", "%2f", "a%2Fb%25", "%00"] {
            assert!(is_percent_encoded(whole), "{whole}");
        }
        for torn in ["%", "%z", "%zz", "%2", "a%2g", "%%25", "%25%", "%é"] {
            assert!(!is_percent_encoded(torn), "{torn}");
        }
    }
}
