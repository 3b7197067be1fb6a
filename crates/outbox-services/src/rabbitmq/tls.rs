//! What a node needs to speak TLS. The files lie in the node's directory, which is closed to others.

use std::path::Path;
use std::{fs, io};

const CA_FILE: &str = "ca.pem";
const CERT_FILE: &str = "cert.pem";
const KEY_FILE: &str = "key.pem";

/// What a node needs to speak TLS as well. All texts are PEM.
#[derive(Clone, Copy)]
pub struct Tls<'a> {
    /// The authority that clients' certificates must come from.
    pub ca_pem: &'a str,
    /// The node's certificate.
    pub cert_pem: &'a str,
    /// The private key of the node's certificate.
    pub key_pem: &'a str,
    /// Whether clients need a certificate.
    pub clients: ClientCertificates,
}

/// Whether clients of a node that speaks TLS need a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificates {
    /// It is not asked for.
    Ignored,
    /// Without a good one the connection is refused.
    Required,
}

impl Tls<'_> {
    /// The lines of the node's configuration.
    pub(super) fn config(&self, dir: &Path, port: u16) -> String {
        let file = |name: &str| dir.join(name).display().to_string();
        let (verify, needed) = match self.clients {
            ClientCertificates::Ignored => ("verify_none", false),
            ClientCertificates::Required => ("verify_peer", true),
        };
        format!(
            "listeners.ssl.default = 127.0.0.1:{port}\n\
             ssl_options.cacertfile = {}\nssl_options.certfile = {}\nssl_options.keyfile = {}\n\
             ssl_options.verify = {verify}\nssl_options.fail_if_no_peer_cert = {needed}\n",
            file(CA_FILE),
            file(CERT_FILE),
            file(KEY_FILE)
        )
    }

    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        fs::write(dir.join(CA_FILE), self.ca_pem)?;
        renew(dir, self.cert_pem, self.key_pem)
    }
}

impl std::fmt::Debug for Tls<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("clients", &self.clients).finish_non_exhaustive()
    }
}

/// Puts another certificate where the node finds its own.
pub(super) fn renew(dir: &Path, cert_pem: &str, key_pem: &str) -> io::Result<()> {
    fs::write(dir.join(CERT_FILE), cert_pem)?;
    fs::write(dir.join(KEY_FILE), key_pem)
}
