//! The TLS configuration, always with `ring`: an application around us may have installed another provider, or several
//! may be compiled in, in which case the library's own default would panic.

use std::io;
use std::path::Path;
use std::sync::Arc;

use async_nats::rustls::crypto::ring;
use async_nats::rustls::pki_types::pem::PemObject;
use async_nats::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use async_nats::rustls::{ClientConfig, RootCertStore};

use crate::config::NatsConfig;
use crate::login::bytes_of;

/// Reads the files anew and makes the configuration; the system's authorities are trusted beside those of `ca_file`.
///
/// # Errors
/// When a file can't be read or holds no PEM of its kind; the text names the file.
pub(crate) async fn client_config(config: &NatsConfig) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    // A system without authorities, or with a broken one among them, is no obstacle where ca_file names ours.
    let system = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await.map_err(io::Error::other)?;
    roots.add_parsable_certificates(system.certs);
    if let Some(file) = &config.ca_file {
        for certificate in certificates(file).await? {
            roots.add(certificate).map_err(|error| invalid(file, &error.to_string()))?;
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots);
    let (Some(cert_file), Some(key_file)) = (&config.cert_file, &config.key_file) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(cert_file).await?;
    // What the parser says may quote the file, which holds a secret.
    let key = PrivateKeyDer::from_pem_slice(&bytes_of(key_file).await?)
        .map_err(|_| invalid(key_file, "no private key in PEM"))?;
    builder.with_client_auth_cert(chain, key).map_err(|error| invalid(cert_file, &error.to_string()))
}

async fn certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let pem = bytes_of(file).await?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    found.ok().filter(|found| !found.is_empty()).ok_or_else(|| invalid(file, "no certificate in PEM"))
}

fn invalid(file: &Path, problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {problem}", file.display()))
}
