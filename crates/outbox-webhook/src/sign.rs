//! Signatures as [Standard Webhooks](https://www.standardwebhooks.com) has them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

/// What a secret begins with.
const PREFIX: &str = "whsec_";
/// Standard Webhooks: "between 24 bytes (192 bits) and 64 bytes (512 bits)".
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Two are in use while a secret is being replaced; each costs a hash over the body and 48 bytes of header.
const MAX_KEYS: usize = 8;

/// The keys that requests are signed with. Shows none of them.
#[derive(Clone)]
pub(crate) struct Keys(Vec<hmac::Key>);

impl Keys {
    /// Reads secrets that are separated by white space. A problem is told without showing a secret.
    pub(crate) fn parse(secrets: &str) -> Result<Self, String> {
        let keys: Vec<_> = secrets.split_whitespace().map(key).collect::<Result<_, _>>()?;
        if keys.is_empty() || keys.len() > MAX_KEYS {
            return Err(format!("must hold 1 to {MAX_KEYS} secrets, got {}", keys.len()));
        }
        Ok(Self(keys))
    }

    /// The value of `webhook-signature`: one signature for each key, in their order.
    pub(crate) fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let timestamp = timestamp.to_string();
        let signatures = self.0.iter().map(|key| {
            let mut context = hmac::Context::with_key(key);
            for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
                context.update(part);
            }
            format!("v1,{}", STANDARD.encode(context.sign()))
        });
        signatures.collect::<Vec<_>>().join(" ")
    }
}

fn key(secret: &str) -> Result<hmac::Key, String> {
    let encoded = secret.strip_prefix(PREFIX).ok_or_else(|| {
        format!("must begin with `{PREFIX}`: only symmetric secrets of Standard Webhooks are supported")
    })?;
    let key = STANDARD.decode(encoded).map_err(|_| format!("must be base64 with padding after `{PREFIX}`"))?;
    if !KEY_BYTES.contains(&key.len()) {
        let (min, max) = (KEY_BYTES.start(), KEY_BYTES.end());
        return Err(format!("must hold a key of {min} to {max} bytes, got {}", key.len()));
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &key))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OTHER: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

    /// The vector that the reference libraries of Standard Webhooks test themselves with.
    #[test]
    fn the_published_vector() {
        let keys = Keys::parse(SECRET).unwrap();
        let signature = keys.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    /// The reference library in Rust, which shares no code with this one.
    #[test]
    fn the_reference_library_accepts_each_secret() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let signature = Keys::parse(&format!(" {SECRET}\n{OTHER}\n")).unwrap().sign("id", now, b"body");
        let mut headers = hyper::HeaderMap::new();
        headers.insert("webhook-id", "id".parse().unwrap());
        headers.insert("webhook-timestamp", now.into());
        headers.insert("webhook-signature", signature.parse().unwrap());
        for secret in [SECRET, OTHER] {
            let webhook = standardwebhooks::Webhook::new(secret).unwrap();
            webhook.verify(b"body", &headers).unwrap();
            assert!(webhook.verify(b"Body", &headers).is_err());
        }
        let stranger = standardwebhooks::Webhook::new("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").unwrap();
        assert!(stranger.verify(b"body", &headers).is_err());
    }

    #[test]
    fn bad_secrets_are_refused_without_being_shown() {
        let check = |secrets: &str, problem: &str| {
            assert_eq!(Keys::parse(secrets).err().as_deref(), Some(problem), "{secrets}");
        };
        check(" \n", "must hold 1 to 8 secrets, got 0");
        check(&format!("{SECRET} ").repeat(9), "must hold 1 to 8 secrets, got 9");
        let prefix = "must begin with `whsec_`: only symmetric secrets of Standard Webhooks are supported";
        check("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", prefix);
        check("whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", prefix);
        check("whsec_hunter2", "must be base64 with padding after `whsec_`");
        check("whsec_aHVudGVyMg==", "must hold a key of 24 to 64 bytes, got 7");
        check(&format!("whsec_{}", "AAAA".repeat(22)), "must hold a key of 24 to 64 bytes, got 66");
        assert!(Keys::parse(&format!("{SECRET} {OTHER}")).is_ok());
    }
}
