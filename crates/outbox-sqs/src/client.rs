//! Makes the client of SQS: HTTP over rustls with `ring`, or plain, and nothing that retries by itself.

use std::path::Path;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::config::{
    BehaviorVersion, Builder, Config, Credentials, Region, SharedCredentialsProvider, SharedHttpClient,
};
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{self, TlsContext, TrustStore};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::config::{Destination, SqsConfig};
use crate::error::ConfigError;

/// What the SDK calls the source of a key from the config.
const PROVIDER_NAME: &str = "outbox";

/// The access key of the config, if there is one.
pub(crate) fn credentials(config: &SqsConfig) -> Option<SharedCredentialsProvider> {
    let (id, secret) = (config.access_key_id.clone()?, config.secret_access_key.clone()?);
    let key = Credentials::new(id, secret, config.session_token.clone(), None, PROVIDER_NAME);
    Some(SharedCredentialsProvider::new(key))
}

/// Makes a client. It does no I/O but reading `ca_file`.
///
/// # Errors
/// When `ca_file` holds no certificates.
pub(crate) fn connect(
    config: &SqsConfig,
    destination: Destination,
    credentials: SharedCredentialsProvider,
) -> Result<Client, ConfigError> {
    let mut settings = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(destination.region))
        .credentials_provider(credentials)
        .http_client(http_client(config, destination.plain)?);
    settings.set_endpoint_url(destination.endpoint);
    Ok(Client::from_conf(settings.build()))
}

/// What holds for each request, also over a client that the user made.
///
/// The SDK must not send again by itself: after a lost answer that makes copies which nobody counts, and waits which
/// nobody bounds. The relay does it, with the same id.
pub(crate) fn each_request(config: &SqsConfig) -> Builder {
    let timeouts = TimeoutConfig::builder().connect_timeout(config.connect_timeout).build();
    Config::builder().retry_config(RetryConfig::disabled()).timeout_config(timeouts)
}

fn http_client(config: &SqsConfig, plain: bool) -> Result<SharedHttpClient, ConfigError> {
    let builder = aws_smithy_http_client::Builder::new();
    if plain {
        return Ok(builder.build_http());
    }
    let builder = builder.tls_provider(tls::Provider::Rustls(CryptoMode::Ring));
    let Some(file) = &config.ca_file else { return Ok(builder.build_https()) };
    let problem = |problem: String| ConfigError { field: "ca_file", problem: format!("{}: {problem}", file.display()) };
    let trusted = TrustStore::default().with_pem_certificate(read_authorities(file).map_err(problem)?);
    let context = TlsContext::builder().with_trust_store(trusted).build();
    Ok(builder.tls_context(context.map_err(|error| problem(error.to_string()))?).build_https())
}

/// Reads a PEM file and looks at each certificate as the HTTP client will: on one that it can't use it would panic.
fn read_authorities(file: &Path) -> Result<Vec<u8>, String> {
    // tidy: an authority belongs to the connection, and the relay's own files are read by `cli`
    let pem = std::fs::read(file).map_err(|error| format!("can't be read: {error}"))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| format!("is no PEM file: {error}"))?;
        roots.add(certificate).map_err(|error| format!("holds a certificate that can't be used: {error}"))?;
    }
    if roots.is_empty() { Err("holds no certificate".to_owned()) } else { Ok(pem) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_refused_before_it_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let check = |text: Option<&str>, expected: &str| {
            let file = dir.path().join("ca.pem");
            match text {
                Some(text) => std::fs::write(&file, text).unwrap(),
                None => assert!(!file.exists()),
            }
            let config = SqsConfig::new("https://localhost/1/q").with_ca_file(&file);
            let problem = http_client(&config, false).unwrap_err().to_string();
            assert!(problem.starts_with("ca_file: ") && problem.contains(expected), "{problem}");
        };
        check(None, "can't be read");
        check(Some("no certificate"), "holds no certificate");
        check(Some("-----BEGIN CERTIFICATE-----\nü\n-----END CERTIFICATE-----\n"), "is no PEM file");
        check(Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), "can't be used");
    }
}
