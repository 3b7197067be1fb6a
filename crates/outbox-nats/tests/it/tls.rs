//! Certificates: who is trusted, and that a refusal is quick and names its cause.

use std::time::{Duration, Instant};

use outbox_core::{ErrorKind, Publisher};
use outbox_nats::{NatsConfig, NatsPublisher};
use outbox_testkit::certificates::{Authority, Identity, Validity};
use outbox_testkit::services::nats::{Nats, Options, Tls, Version};

use crate::server::{LINES, Place, assert_all_ok, error, events, own, publish};

fn secured(line: Version, identity: Identity, clients: Option<&Authority>) -> Option<Nats> {
    let client_ca_pem = clients.map(Authority::pem);
    let tls = Some(Tls { cert_pem: identity.cert_pem, key_pem: identity.key_pem, client_ca_pem });
    own(line, Options { tls, ..Options::default() })
}

fn file(server: &Nats, name: &str, text: &str) -> std::path::PathBuf {
    let path = server.dir().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

async fn refused(config: NatsConfig, cause: &str) {
    let publisher = NatsPublisher::connect(config).unwrap();
    let begun = Instant::now();
    let outcomes = publish(&publisher, &events(1)).await;
    let check = publisher.check().await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    for error in [error(&outcomes[0]), &check] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
        assert!(error.report().contains(cause), "{}", error.report());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_certificate_of_a_known_authority_for_this_host_that_has_not_expired_is_accepted() {
    for line in LINES {
        let authority = Authority::new();
        let Some(server) = secured(line, authority.issue("localhost", Validity::Valid), None) else { return };
        let ca = file(&server, "ca.pem", &authority.pem());
        let options = async_nats::ConnectOptions::new().add_root_certificates(ca.clone());
        let place = Place::over(&server.url(), options.connect(server.url()).await.unwrap());
        place.create_stream(|_| {}).await;
        let config = place.config().with_ca_file(&ca);
        let publisher = NatsPublisher::connect(config.clone()).unwrap();
        assert_all_ok(&publish(&publisher, &events(20)).await);
        publisher.check().await.unwrap();

        refused(place.config(), "UnknownIssuer").await;
        let other = file(&server, "other.pem", &Authority::new().pem());
        refused(place.config().with_ca_file(other), "UnknownIssuer").await;
        let mut by_address = config.clone();
        by_address.url = format!("tls://127.0.0.1:{}", server.port());
        refused(by_address, "not valid for name").await;
        refused(config.clone().with_ca_file("/nowhere/ca.pem"), "/nowhere/ca.pem").await;
        let nonsense = file(&server, "nonsense.pem", "nonsense");
        refused(config.with_ca_file(nonsense), "no certificate in PEM").await;

        let expired = authority.issue("localhost", Validity::Expired);
        let Some(server) = secured(line, expired, None) else { return };
        let ca = file(&server, "ca.pem", &authority.pem());
        refused(NatsConfig::new(server.url(), "x").with_ca_file(ca), "expired").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_certificate_is_shown_where_the_server_requires_one() {
    for line in LINES {
        let (authority, clients) = (Authority::new(), Authority::new());
        let identity = authority.issue("localhost", Validity::Valid);
        let Some(server) = secured(line, identity, Some(&clients)) else { return };
        let ca = file(&server, "ca.pem", &authority.pem());
        let own = clients.issue("relay", Validity::Valid);
        let (cert, key) = (file(&server, "own.pem", &own.cert_pem), file(&server, "own-key.pem", &own.key_pem));
        let options = async_nats::ConnectOptions::new()
            .add_root_certificates(ca.clone())
            .add_client_certificate(cert.clone(), key.clone());
        let place = Place::over(&server.url(), options.connect(server.url()).await.unwrap());
        place.create_stream(|_| {}).await;
        let config = place.config().with_ca_file(&ca);
        let publisher = NatsPublisher::connect(config.clone().with_client_certificate(&cert, &key)).unwrap();
        assert_all_ok(&publish(&publisher, &events(20)).await);

        refused(config.clone(), "alert").await;
        let stranger = Authority::new().issue("relay", Validity::Valid);
        let strange_cert = file(&server, "strange.pem", &stranger.cert_pem);
        let strange_key = file(&server, "strange-key.pem", &stranger.key_pem);
        refused(config.clone().with_client_certificate(strange_cert, strange_key), "alert").await;
        refused(config.with_client_certificate(&cert, &ca), "no private key in PEM").await;
    }
}

/// A server that speaks no TLS gets no password and no event from a client that wants it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_tls_is_refused_by_a_client_that_wants_it() {
    let Some(server) = own(Version::New, Options::default()) else { return };
    refused(NatsConfig::new(format!("tls://relay:p@localhost:{}", server.port()), "x"), "can't connect").await;
}
