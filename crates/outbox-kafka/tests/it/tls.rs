//! Whom the publisher trusts, whom brokers trust, and how soon a refusal is known. The broker has no TLS of its own:
//! an end of TLS stands before it and leads on.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{ErrorKind, Publisher};
use outbox_kafka::KafkaConfig;
use outbox_testkit::certificates::{Authority, Identity, Validity};
use outbox_testkit::services::kafka::{Kafka, Options};
use outbox_testkit::services::process::free_port;
use outbox_testkit::services::require_or_skip;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::broker::{Topic, arrived_ids, connect, error, events, ids, publish, until};

/// A refusal must be known well before an operator looks for it.
const SOON: Duration = Duration::from_secs(10);

/// A broker behind an end of TLS.
struct Secured {
    address: String,
    topic: Topic,
    files: TempDir,
    _broker: Kafka,
    accepting: JoinHandle<()>,
}

impl Secured {
    /// `clients`: the authority whose clients alone are let in.
    async fn start(identity: &Identity, clients: Option<&Authority>) -> Option<Self> {
        let acceptor = acceptor(identity, clients);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("localhost:{}", listener.local_addr().unwrap().port());
        let port = free_port().unwrap();
        let options = Options::default().on_port(port).advertising(&address);
        let broker = tokio::task::block_in_place(|| require_or_skip("kafka", Kafka::start(options)))?;
        let topic = Topic::created(&broker.address()).await;
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut client = match acceptor.accept(client).into_fallible().await {
                        Ok(client) => client,
                        // What some of these tests want. Closed at once, with the client's first request unread, the
                        // connection would be reset and the alert with the cause lost on the way.
                        Err((_, mut socket)) => {
                            let _ = socket.shutdown().await;
                            let _ = tokio::io::copy(&mut socket, &mut tokio::io::sink()).await;
                            return;
                        }
                    };
                    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Some(Self { address, topic, files: TempDir::new().unwrap(), _broker: broker, accepting })
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.files.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn config(&self) -> KafkaConfig {
        KafkaConfig::new(&self.address).with_topic(&self.topic.name).with_tls()
    }

    fn trusting(&self, authority: &Authority) -> KafkaConfig {
        self.config().with_ca_file(self.file("ca.pem", &authority.pem()))
    }

    /// Events pass.
    async fn lets_in(&self, config: KafkaConfig) {
        let publisher = connect(config);
        let batch = events(20);
        let outcomes = publish(&publisher, &batch).await;
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        publisher.check().await.unwrap();
        publisher.close().await;
        assert_eq!(arrived_ids(&self.topic.arrived(20).await), ids(&batch));
    }

    /// With the default time-outs, and with the cause in the words of one of these.
    async fn refuses(&self, config: KafkaConfig, kind: ErrorKind, causes: &[&str]) {
        let publisher = connect(config);
        for _ in 0..2 {
            let begun = Instant::now();
            let outcome = publish(&publisher, &events(1)).await.remove(0);
            assert!(begun.elapsed() < SOON, "{:?}: {outcome:?}", begun.elapsed());
            let begun = Instant::now();
            let check = publisher.check().await.unwrap_err();
            assert!(begun.elapsed() < SOON, "{:?}: {check:?}", begun.elapsed());
            for error in [error(&outcome), &check] {
                assert_eq!(error.kind(), kind, "{}", error.report());
                let report = error.report();
                assert!(causes.iter().any(|cause| report.contains(cause)), "none of {causes:?} in: {report}");
            }
        }
        assert!(self.topic.arrived(0).await.is_empty());
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn acceptor(identity: &Identity, clients: Option<&Authority>) -> TlsAcceptor {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = match clients {
        None => builder.unwrap().with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.unwrap().with_client_cert_verifier(verifier)
        }
    };
    let chain = vec![CertificateDer::from_pem_slice(identity.cert_pem.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).unwrap();
    TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_of_ones_own_is_trusted_when_it_is_named() {
    let authority = Authority::new();
    let identity = authority.issue("localhost", Validity::Valid);
    let Some(secured) = Secured::start(&identity, None).await else { return };
    secured.refuses(secured.config(), ErrorKind::Unavailable, &["UnknownIssuer"]).await;
    secured
        .refuses(secured.trusting(&Authority::new()), ErrorKind::Unavailable, &["UnknownIssuer", "BadSignature"])
        .await;
    secured.lets_in(secured.trusting(&authority)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_for_another_host_is_refused() {
    let authority = Authority::new();
    let identity = authority.issue("elsewhere.test", Validity::Valid);
    let Some(secured) = Secured::start(&identity, None).await else { return };
    secured
        .refuses(secured.trusting(&authority), ErrorKind::Unavailable, &["not valid for name", "NotValidForName"])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_certificate_is_refused() {
    let authority = Authority::new();
    let identity = authority.issue("localhost", Validity::Expired);
    let Some(secured) = Secured::start(&identity, None).await else { return };
    secured.refuses(secured.trusting(&authority), ErrorKind::Unavailable, &["expired", "Expired"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_certificate_opens_what_is_closed_without() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let identity = authority.issue("localhost", Validity::Valid);
    let Some(secured) = Secured::start(&identity, Some(&clients)).await else { return };
    let with = |identity: &Identity| {
        let cert = secured.file("client.pem", &identity.cert_pem);
        secured.trusting(&authority).with_client_certificate(cert, secured.file("client.key", &identity.key_pem))
    };
    // The client library loses the alert now and then.
    let lost = "does not accept the client certificate, or wants one";
    let required = ["CertificateRequired", lost];
    secured.refuses(secured.trusting(&authority), ErrorKind::Unavailable, &required).await;
    let stranger = Authority::new().issue("relay", Validity::Valid);
    let unknown = ["UnknownCA", "DecryptError", lost];
    secured.refuses(with(&stranger), ErrorKind::Unavailable, &unknown).await;
    secured.lets_in(with(&clients.issue("relay", Validity::Valid))).await;
}

/// A file that is not there yet is named, and read when it is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_file_is_named_and_used_once_it_is_there() {
    let authority = Authority::new();
    let identity = authority.issue("localhost", Validity::Valid);
    let Some(secured) = Secured::start(&identity, None).await else { return };
    let file = secured.files.path().join("later.pem");
    let publisher = connect(secured.config().with_ca_file(&file));
    let check = publisher.check().await.unwrap_err();
    assert_eq!(check.kind(), ErrorKind::Misconfigured);
    assert!(check.report().contains("later.pem"), "{}", check.report());
    secured.file("later.pem", &authority.pem());
    until(|| async { publisher.check().await.is_ok() }).await;
}

/// Nobody talks TLS at the other end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_without_tls_is_unavailable_soon() {
    let Some(address) = crate::broker::address() else { return };
    let begun = Instant::now();
    let publisher = connect(KafkaConfig::new(&address).with_tls());
    let check = publisher.check().await.unwrap_err();
    assert_eq!(check.kind(), ErrorKind::Unavailable, "{}", check.report());
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}
