//! TLS with `ring` as its own provider, whatever the process has installed: system authorities, files, and the knowledge
//! of whether a server asked for a certificate.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, SignatureScheme};

/// How long files that were read are used for new connections: renewed certificates are taken up within a minute, and
/// a burst of connections reads them once.
const FILES_FRESH_FOR: Duration = Duration::from_secs(60);

/// Where certificates and keys stand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

/// What a handshake needs.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) config: Arc<ClientConfig>,
    /// Whether the server has asked for a client certificate, in any handshake so far.
    pub(crate) asked: Arc<AtomicBool>,
}

/// Reads the files when they are needed, so that a publisher is made without I/O.
pub(crate) struct TlsSource {
    files: Files,
    read: Mutex<Option<(Instant, Tls)>>,
}

impl TlsSource {
    pub(crate) fn new(files: Files) -> Self {
        Self { files, read: Mutex::default() }
    }

    /// What was read, at most a minute ago.
    ///
    /// # Errors
    /// A file that can't be read or used, with its name; no authority at all.
    pub(crate) async fn get(&self) -> io::Result<Tls> {
        let mut read = self.read.lock().await;
        if let Some((at, tls)) = &*read
            && at.elapsed() < FILES_FRESH_FOR
        {
            return Ok(tls.clone());
        }
        let files = self.files.clone();
        let tls = tokio::task::spawn_blocking(move || load(&files)).await.map_err(io::Error::other)??;
        *read = Some((Instant::now(), tls.clone()));
        Ok(tls)
    }
}

fn load(files: &Files) -> io::Result<Tls> {
    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    // Systems hold authorities that this library can't use; the others count.
    roots.add_parsable_certificates(native.certs);
    if let Some(path) = &files.ca {
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| named(path, error))?;
        }
    }
    if roots.is_empty() {
        let cause = native.errors.into_iter().next().map_or_else(String::new, |error| format!(" ({error})"));
        return Err(io::Error::other(format!("this system has no trusted authorities{cause}; set ca_file")));
    }
    let provider = Arc::new(ring::default_provider());
    let asked = Arc::new(AtomicBool::new(false));
    let identity = files.identity.as_ref().map(|files| identity(files, &provider)).transpose()?;
    let resolver = Identity { key: identity, asked: Arc::clone(&asked) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_client_cert_resolver(Arc::new(resolver));
    Ok(Tls { config: Arc::new(config), asked })
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.map_err(|error| named(path, error))?;
    if found.is_empty() { Err(named(path, "no certificate in PEM")) } else { Ok(found) }
}

fn identity((cert, key): &(PathBuf, PathBuf), provider: &CryptoProvider) -> io::Result<Arc<CertifiedKey>> {
    let chain = certificates(cert)?;
    let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| named(key, error))?;
    CertifiedKey::from_der(chain, private, provider).map(Arc::new).map_err(|error| named(cert, error))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // tidy: certificates are renewed while a relay runs, so the adapter reads them by itself
    std::fs::read(path).map_err(|error| named(path, error))
}

fn named(path: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

/// Answers a server that asks for a certificate, and remembers that it asked.
#[derive(Debug)]
struct Identity {
    key: Option<Arc<CertifiedKey>>,
    asked: Arc<AtomicBool>,
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.asked.store(true, Ordering::Relaxed);
        self.key.clone()
    }

    fn has_certs(&self) -> bool {
        self.key.is_some()
    }
}
