//! Credentials that expire or are replaced (field report B52): they are read again at each connect, without a limit.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nkeys::KeyPair;
use outbox_core::{ErrorKind, Publisher};
use outbox_nats::{NatsConfig, NatsPublisher};

use crate::server::{LINES, Place, assert_all_ok, error, events, own_with, publish, until};

/// How long the first credentials last: long enough to publish with them on a busy machine.
const SHORT_LIFE: Duration = Duration::from_secs(4);

/// Base64 with the alphabet of URLs and without padding, as JWTs have it.
fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut bits = 0_u32;
        for at in 0..3 {
            bits = (bits << 8) | u32::from(chunk.get(at).copied().unwrap_or(0));
        }
        for at in 0..=chunk.len() {
            text.push(char::from(ALPHABET[((bits >> (18 - 6 * at)) & 63) as usize]));
        }
    }
    text
}

/// A token of NATS: who (`subject`) may do what (`nats`), signed by `issuer`.
fn jwt(issuer: &KeyPair, subject: &KeyPair, nats: &serde_json::Value, life: Option<Duration>) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut claims = serde_json::json!({
        "jti": subject.public_key(), "iat": now.as_secs(), "iss": issuer.public_key(), "name": "test",
        "sub": subject.public_key(), "nats": nats,
    });
    if let Some(life) = life {
        claims["exp"] = (now + life).as_secs().into();
    }
    let header = base64url(br#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let signed = format!("{header}.{}", base64url(claims.to_string().as_bytes()));
    let signature = base64url(&issuer.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}

struct Trust {
    account: KeyPair,
    config: String,
}

impl Trust {
    /// An operator with an account that has JetStream, as the configuration of a server.
    fn new() -> Self {
        let (operator, system, account) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
        let limits = serde_json::json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
            "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
        });
        let of = |kind: &str, limits: &serde_json::Value| serde_json::json!({ "type": kind, "version": 2, "limits": limits });
        let mut no_storage = limits.clone();
        no_storage["mem_storage"] = 0.into();
        no_storage["disk_storage"] = 0.into();
        let mut config = String::new();
        let operator_jwt = jwt(&operator, &operator, &serde_json::json!({ "type": "operator", "version": 2 }), None);
        let _ = writeln!(config, "operator: {operator_jwt}\nresolver: MEMORY\nsystem_account: {}", system.public_key());
        let _ = writeln!(config, "resolver_preload: {{");
        for (key, limits) in [(&system, &no_storage), (&account, &limits)] {
            let _ = writeln!(config, "  {}: {}", key.public_key(), jwt(&operator, key, &of("account", limits), None));
        }
        config.push_str("}\n");
        Self { account, config }
    }

    /// The file of a user, as `nsc generate creds` writes it.
    fn creds(&self, life: Duration) -> String {
        let user = KeyPair::new_user();
        let nats = serde_json::json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 });
        let token = jwt(&self.account, &user, &nats, Some(life));
        format!(
            "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            user.seed().unwrap()
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_credentials_are_replaced_without_a_restart() {
    for line in LINES {
        let trust = Trust::new();
        let Some(server) = own_with(line, &trust.config) else { return };
        let day = Duration::from_secs(24 * 3600);
        let admin = async_nats::ConnectOptions::with_credentials(&trust.creds(day)).unwrap();
        let place = Place::over(&server.url(), admin.connect(server.url()).await.unwrap());
        place.create_stream(|_| {}).await;
        let file = server.dir().join("relay.creds");
        std::fs::write(&file, trust.creds(SHORT_LIFE)).unwrap();
        let config = place.config().with_creds_file(&file).with_connect_timeout(Duration::from_secs(2));
        let publisher = NatsPublisher::connect(config).unwrap();
        assert_all_ok(&publish(&publisher, &events(5)).await);

        // The server closes the connection by itself. Within the same second it still lets in, and closes again.
        let refused = |report: &str| report.contains("authorization violation");
        until(|| async { publisher.check().await.is_err_and(|error| refused(&error.report())) }).await;
        let wrong = [None, Some("nonsense".to_owned()), Some(Trust::new().creds(day))];
        for content in wrong {
            match &content {
                Some(text) => std::fs::write(&file, text).unwrap(),
                None => std::fs::remove_file(&file).unwrap(),
            }
            let check = publisher.check().await.unwrap_err();
            assert_eq!(check.kind(), ErrorKind::Unavailable, "{}", check.report());
            assert!(!check.report().contains("nonsense"), "nothing of the file is shown: {}", check.report());
            assert_eq!(error(&publish(&publisher, &events(1)).await[0]).kind(), ErrorKind::Unavailable);
        }
        std::fs::write(&file, trust.creds(day)).unwrap();
        publisher.check().await.unwrap();
        assert_all_ok(&publish(&publisher, &events(5)).await);
        assert_eq!(place.arrived().await.len(), 10);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_in_a_file_is_read_again() {
    for line in LINES {
        let users = |password: &str| {
            format!(
                "authorization {{ users: [{{ user: admin, password: a }}, {{ user: relay, password: \"{password}\" }}] }}\n"
            )
        };
        let Some(mut server) = own_with(line, &users("first")) else { return };
        let admin = async_nats::ConnectOptions::with_user_and_password("admin".into(), "a".into());
        let place = Place::over(&server.url(), admin.connect(server.url()).await.unwrap());
        place.create_stream(|_| {}).await;
        let file = server.dir().join("password");
        std::fs::write(&file, "first\n").unwrap();
        let config = NatsConfig::new(server.url(), place.template()).with_user_and_password_file("relay", &file);
        let publisher = NatsPublisher::connect(config).unwrap();
        assert_all_ok(&publish(&publisher, &events(5)).await);

        tokio::task::block_in_place(|| server.reload(&users("second"))).unwrap();
        until(|| async { publisher.check().await.is_err() }).await;
        std::fs::write(&file, "second\n").unwrap();
        until(|| async { publisher.check().await.is_ok() }).await;
        assert_all_ok(&publish(&publisher, &events(5)).await);
    }
}
