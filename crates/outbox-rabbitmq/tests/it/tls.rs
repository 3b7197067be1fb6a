//! `amqps://` against a real broker: who is let in, and what is said when someone is not.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use outbox_core::{ErrorKind, Publisher};
use outbox_rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use outbox_testkit::certificates::{Authority, Identity, Validity};
use outbox_testkit::services::rabbitmq::{ClientCertificates, RabbitMq, Tls};
use outbox_testkit::services::require_or_skip;
use tempfile::TempDir;

use crate::broker::{Broker, Kind, arrived_ids, error, events, ids, publish};

/// No refusal may take longer, whatever it is.
const LIMIT: Duration = Duration::from_secs(10);

/// The alert that says more (`CertificateRequired`, `CertificateExpired`, `UnknownCA`) may be lost in a reset.
const REFUSED: &str = "refuses the client's certificate";

/// A node with a certificate for `localhost`, and files for clients.
struct Secured {
    node: RabbitMq,
    broker: Broker,
    authority: Authority,
    files: TempDir,
}

impl Secured {
    async fn start(clients: ClientCertificates) -> Option<Self> {
        let authority = Authority::new();
        let Identity { cert_pem, key_pem } = authority.issue("localhost", Validity::Valid);
        let tls = Tls { ca_pem: &authority.pem(), cert_pem: &cert_pem, key_pem: &key_pem, clients };
        let node = tokio::task::block_in_place(|| require_or_skip("amqp", RabbitMq::start_with_tls(&tls)))?;
        let broker = Broker::bound(&node.url(), Kind::Classic).await;
        Some(Self { node, broker, authority, files: TempDir::new().unwrap() })
    }

    fn file(&self, name: &str, pem: &str) -> PathBuf {
        let path = self.files.path().join(name);
        fs::write(&path, pem).unwrap();
        path
    }

    /// How a careful client connects: by the right name, knowing the authority.
    fn config(&self) -> RabbitMqConfig {
        self.config_to("localhost").with_ca_file(self.file("ca.pem", &self.authority.pem()))
    }

    fn config_to(&self, host: &str) -> RabbitMqConfig {
        let url = format!("amqps://guest:guest@{host}:{}/%2f", self.node.tls_port());
        RabbitMqConfig::new(url, &self.broker.exchange)
    }

    fn with_client(&self, config: RabbitMqConfig, identity: &Identity) -> RabbitMqConfig {
        config.with_client_certificate(
            self.file("client.pem", &identity.cert_pem),
            self.file("client.key", &identity.key_pem),
        )
    }

    /// Publishes one event and takes it out again.
    async fn is_let_in(&self, config: RabbitMqConfig) {
        let publisher = RabbitMqPublisher::connect(config).unwrap();
        let batch = events(1);
        let outcomes = publish(&publisher, &batch).await;
        assert!(outcomes[0].is_ok(), "{}", error(&outcomes[0]).report());
        publisher.check().await.unwrap();
        assert_eq!(arrived_ids(&self.broker.take().await), ids(&batch));
    }
}

/// Refused in time, as an outage: nothing was sent, and it is mended outside of the event.
async fn is_refused(case: &str, config: RabbitMqConfig, cause: &str) {
    let publisher = RabbitMqPublisher::connect(config).unwrap();
    let begun = Instant::now();
    let outcomes = publish(&publisher, &events(1)).await;
    assert!(begun.elapsed() < LIMIT, "{case}: took {:?}", begun.elapsed());
    let error = error(&outcomes[0]);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{case}: {}", error.report());
    let report = error.report();
    assert!(report.contains(cause), "{case}: the cause is not named: {report}");
    assert!(!report.contains("guest"), "{report}");
    let begun = Instant::now();
    assert!(publisher.check().await.is_err(), "{case}");
    assert!(begun.elapsed() < LIMIT, "{case}: check took {:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_brokers_certificate_must_be_good() {
    let Some(secured) = Secured::start(ClientCertificates::Ignored).await else { return };
    secured.is_let_in(secured.config()).await;

    let unknown = secured.config_to("localhost");
    is_refused("no authority but the system's", unknown.clone(), "UnknownIssuer").await;
    let other = secured.file("other.pem", &Authority::new().pem());
    is_refused("another authority", unknown.with_ca_file(other), "UnknownIssuer").await;
    let by_address = secured.config_to("127.0.0.1").with_ca_file(secured.file("ca.pem", &secured.authority.pem()));
    is_refused("another host", by_address, "not valid for name").await;

    let expired = secured.authority.issue("localhost", Validity::Expired);
    tokio::task::block_in_place(|| secured.node.renew_certificate(&expired.cert_pem, &expired.key_pem)).unwrap();
    is_refused("expired", secured.config(), "expired").await;
    let good = secured.authority.issue("localhost", Validity::Valid);
    tokio::task::block_in_place(|| secured.node.renew_certificate(&good.cert_pem, &good.key_pem)).unwrap();
    secured.is_let_in(secured.config()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clients_certificate_must_be_good_where_the_broker_asks_for_it() {
    let Some(secured) = Secured::start(ClientCertificates::Required).await else { return };
    let client =
        |authority: &Authority, validity| secured.with_client(secured.config(), &authority.issue("relay", validity));
    secured.is_let_in(client(&secured.authority, Validity::Valid)).await;

    is_refused("none", secured.config(), REFUSED).await;
    is_refused("expired", client(&secured.authority, Validity::Expired), REFUSED).await;
    is_refused("another authority's", client(&Authority::new(), Validity::Valid), REFUSED).await;
    secured.is_let_in(client(&secured.authority, Validity::Valid)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_are_absent_or_no_certificates_are_named() {
    let Some(secured) = Secured::start(ClientCertificates::Ignored).await else { return };
    let absent = secured.files.path().join("absent.pem");
    is_refused("absent", secured.config_to("localhost").with_ca_file(&absent), "absent.pem").await;
    let garbage = secured.file("garbage.pem", "no certificate");
    is_refused("garbage", secured.config_to("localhost").with_ca_file(garbage), "garbage.pem: holds no").await;
    let mut identity = secured.authority.issue("relay", Validity::Valid);
    std::mem::swap(&mut identity.cert_pem, &mut identity.key_pem);
    is_refused("mixed up", secured.with_client(secured.config(), &identity), "client.pem: holds no").await;
}
