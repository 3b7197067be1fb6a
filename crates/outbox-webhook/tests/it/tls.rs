//! Certificates: each refusal in time, with its cause, and with nothing sent.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use outbox_core::{ErrorKind, Publisher};
use outbox_testkit::certificates::{Authority, Identity, Validity};
use outbox_testkit::proxy::{FaultProxy, Mode};
use outbox_webhook::{WebhookConfig, WebhookPublisher};
use tempfile::TempDir;

use crate::events::{config, event, events, publish, publish_one};
use crate::receiver::{Receiver, SECRET};

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, pem: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, pem).unwrap();
        path
    }

    fn identity(&self, config: WebhookConfig, identity: &Identity) -> WebhookConfig {
        let (cert, key) = (self.write("cert.pem", &identity.cert_pem), self.write("key.pem", &identity.key_pem));
        config.with_client_certificate(cert, key)
    }
}

/// Refused by publish and check alike, in under 10 s, with the cause and without a request.
async fn refused(config: WebhookConfig, receiver: &Receiver, cause: &str) {
    let publisher = WebhookPublisher::connect(config).unwrap();
    let begun = Instant::now();
    for _ in 0..2 {
        let check = publisher.check().await.unwrap_err();
        let outcomes = publish(&publisher, &events(3)).await;
        for error in outcomes.into_iter().map(Result::unwrap_err).chain([check]) {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
            assert!(error.report().contains(cause), "{}", error.report());
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(receiver.received().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_of_ones_own_is_trusted_once_it_is_named() {
    let (authority, files) = (Authority::new(), Files::new());
    let receiver = Receiver::start_tls(&authority.issue("localhost", Validity::Valid), None).await;
    refused(config(receiver.url("/")), &receiver, "UnknownIssuer").await;
    let stranger = files.write("stranger.pem", &Authority::new().pem());
    refused(config(receiver.url("/")).with_ca_file(stranger), &receiver, "invalid peer certificate").await;

    let ca = files.write("ca.pem", &authority.pem());
    let publisher = WebhookPublisher::connect(config(receiver.url("/")).with_ca_file(ca)).unwrap();
    publisher.check().await.unwrap();
    assert_eq!(receiver.received().len(), 0, "a check sends no request");
    publish_one(&publisher, &event(1)).await.unwrap();
    assert!(receiver.received()[0].is_signed_by(SECRET));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_for_another_host_is_refused() {
    let (authority, files) = (Authority::new(), Files::new());
    let receiver = Receiver::start_tls(&authority.issue("example.com", Validity::Valid), None).await;
    let ca = files.write("ca.pem", &authority.pem());
    refused(config(receiver.url("/")).with_ca_file(&ca), &receiver, "not valid for name \"localhost\"").await;

    let receiver = Receiver::start_tls(&authority.issue("127.0.0.1", Validity::Valid), None).await;
    let by_address = config(format!("https://127.0.0.1:{}/", receiver.addr.port())).with_ca_file(ca);
    publish_one(&WebhookPublisher::connect(by_address).unwrap(), &event(1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_certificate_is_refused() {
    let (authority, files) = (Authority::new(), Files::new());
    let receiver = Receiver::start_tls(&authority.issue("localhost", Validity::Expired), None).await;
    let ca = files.write("ca.pem", &authority.pem());
    refused(config(receiver.url("/")).with_ca_file(ca), &receiver, "certificate expired").await;
}

/// With TLS 1.3 a client learns only after its handshake that it was refused; the event must not be sent into that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_certificate_is_required() {
    let (authority, clients, files) = (Authority::new(), Authority::new(), Files::new());
    let receiver = Receiver::start_tls(&authority.issue("localhost", Validity::Valid), Some(&clients)).await;
    let ca = files.write("ca.pem", &authority.pem());
    let config = config(receiver.url("/")).with_ca_file(ca);
    refused(config.clone(), &receiver, "CertificateRequired").await;
    let stranger = Authority::new().issue("relay", Validity::Valid);
    refused(files.identity(config.clone(), &stranger), &receiver, "received fatal alert").await;
    let expired = clients.issue("relay", Validity::Expired);
    refused(files.identity(config.clone(), &expired), &receiver, "CertificateExpired").await;

    let certified = files.identity(config, &clients.issue("relay", Validity::Valid));
    let publisher = WebhookPublisher::connect(certified).unwrap();
    publisher.check().await.unwrap();
    let outcomes = publish(&publisher, &events(50)).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_cant_be_used_are_named() {
    let (authority, files) = (Authority::new(), Files::new());
    let receiver = Receiver::start_tls(&authority.issue("localhost", Validity::Valid), None).await;
    let config = config(receiver.url("/"));
    refused(config.clone().with_ca_file(files.0.path().join("gone.pem")), &receiver, "gone.pem: No such file").await;
    let empty = files.write("empty.pem", "");
    refused(config.clone().with_ca_file(&empty), &receiver, "empty.pem: no certificate in PEM").await;
    let cert = files.write("cert.pem", &authority.issue("relay", Validity::Valid).cert_pem);
    refused(config.with_client_certificate(cert, empty), &receiver, "empty.pem: ").await;
}

/// A peer that says nothing, and one that speaks no TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_hangs_or_fails_is_unavailable() {
    let plain = Receiver::start().await;
    let port = plain.addr.port();
    refused(config(format!("https://localhost:{port}/")), &plain, "the TLS handshake with localhost failed").await;
    let proxy = FaultProxy::start(plain.addr.to_string()).await.unwrap();
    proxy.set_mode(Mode::Blackhole);
    let short = config(format!("https://localhost:{}/", proxy.addr().port()));
    let short = short.with_connect_timeout(Duration::from_millis(500));
    refused(short, &plain, "no connection to localhost within 500ms").await;
}

/// B85: the publisher brings its own provider; whether the process has installed one makes no difference.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_processs_own_provider_does_not_matter() {
    use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
    let (authority, files) = (Authority::new(), Files::new());
    let receiver = Receiver::start_tls(&authority.issue("localhost", Validity::Valid), None).await;
    let ca = files.write("ca.pem", &authority.pem());
    let config = config(receiver.url("/")).with_ca_file(ca);
    publish_one(&WebhookPublisher::connect(config.clone()).unwrap(), &event(1)).await.unwrap();
    assert!(CryptoProvider::get_default().is_none(), "the library installs none");

    // One that can do nothing: using it would fail.
    let useless = CryptoProvider { cipher_suites: Vec::new(), kx_groups: Vec::new(), ..ring::default_provider() };
    useless.install_default().unwrap();
    publish_one(&WebhookPublisher::connect(config).unwrap(), &event(2)).await.unwrap();
}
