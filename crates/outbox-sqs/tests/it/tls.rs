//! TLS: the emulator behind a listener with a certificate.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{ErrorKind, Publisher};
use outbox_sqs::SqsPublisher;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::queue::{Kind, Queue, error, events, ids, publish, url};

/// The promise: a wrong certificate is told in less than this.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);

/// An authority of one test, and its file.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: TempDir,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, dir }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// A server's certificate for a name, valid until a year.
    fn server(&self, name: &str, until: i32) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(until, 1, 1));
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap()
    }
}

/// Takes TLS off in front of a server; ends when dropped.
struct Terminator {
    url: String,
    _tasks: JoinSet<()>,
}

impl Terminator {
    async fn start(config: ServerConfig, upstream: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let upstream = upstream.strip_prefix("http://").unwrap().to_owned();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, upstream) = (acceptor.clone(), upstream.clone());
                connections.spawn(async move {
                    // A client that refuses the certificate ends here, which is what most tests are about.
                    let Ok(mut client) = acceptor.accept(socket).await else { return };
                    let mut server = TcpStream::connect(upstream).await.unwrap();
                    // Ends as the client ends.
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { url, _tasks: tasks }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_of_ones_own_is_trusted() {
    let Some(endpoint) = url() else { return };
    let authority = Authority::new("ours");
    let terminator = Terminator::start(authority.server("localhost", 2100), &endpoint).await;
    let queue = Queue::create(&endpoint, Kind::Fifo).await;
    let config = queue.config().with_endpoint_url(&terminator.url).with_ca_file(authority.file());
    let publisher = SqsPublisher::connect(config).unwrap();
    publisher.check().await.unwrap();
    let batch = events(55);
    assert!(publish(&publisher, &batch).await.iter().all(Result::is_ok));
    assert_eq!(queue.taken_ids(batch.len()).await, ids(&batch));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_certificate_is_refused_in_time_with_its_cause() {
    let Some(endpoint) = url() else { return };
    let (authority, other) = (Authority::new("ours"), Authority::new("other"));
    let queue = Queue::create(&endpoint, Kind::Standard).await;
    for (server, told) in [
        (other.server("localhost", 2100), "UnknownIssuer"),
        (authority.server("elsewhere.example", 2100), "not valid for name"),
        (authority.server("localhost", 2001), "expired"),
    ] {
        let terminator = Terminator::start(server, &endpoint).await;
        let config = queue.config().with_endpoint_url(&terminator.url).with_ca_file(authority.file());
        let publisher = SqsPublisher::connect(config).unwrap();
        let begun = Instant::now();
        let check = publisher.check().await.unwrap_err();
        assert_eq!(check.kind(), ErrorKind::Unavailable, "{}", check.report());
        assert!(check.report().contains(told), "{}", check.report());
        for outcome in publish(&publisher, &events(12)).await {
            let error = error(&outcome);
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
            assert!(error.report().contains(told), "{}", error.report());
        }
        assert!(begun.elapsed() < REFUSED_WITHIN, "{:?}", begun.elapsed());
    }
    assert_eq!(queue.take().await, []);
}

/// A listener that accepts and never shakes hands: nothing was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_hangs_is_given_up_at_connect_timeout() {
    let nobody = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let endpoint = format!("https://localhost:{}", nobody.local_addr().unwrap().port());
    let authority = Authority::new("ours");
    let config = outbox_sqs::SqsConfig::new(format!("{endpoint}/1/q")).with_region("us-east-1");
    let config = config.with_access_key("id", "secret").with_ca_file(authority.file());
    let config = config.with_connect_timeout(Duration::from_millis(500));
    let publisher = SqsPublisher::connect(config).unwrap();
    let begun = Instant::now();
    let outcomes = publish(&publisher, &events(1)).await;
    assert_eq!(error(&outcomes[0]).kind(), ErrorKind::Unavailable, "{}", error(&outcomes[0]).report());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

/// Field report B85: an application that has installed a provider of its own is no reason to panic, nor is one that
/// has not (the other tests).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_the_application_installed_is_left_alone() {
    let installed = rustls::crypto::ring::default_provider().install_default().is_ok();
    let Some(endpoint) = url() else { return };
    let authority = Authority::new("ours");
    let terminator = Terminator::start(authority.server("localhost", 2100), &endpoint).await;
    let queue = Queue::create(&endpoint, Kind::Standard).await;
    let config = queue.config().with_endpoint_url(&terminator.url).with_ca_file(authority.file());
    SqsPublisher::connect(config).unwrap().check().await.unwrap();
    assert!(installed || rustls::crypto::CryptoProvider::get_default().is_some());
}
