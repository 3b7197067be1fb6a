//! Certificates for tests of TLS: an authority of one's own and what it vouches for.

use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use uuid::Uuid;

/// Neither end of the test may notice the other's clock.
const MARGIN: Duration = Duration::from_secs(24 * 3600);

/// An authority that nobody else trusts.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate for one host, or for one client, with its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate.
    pub cert_pem: String,
    /// Its private key (PKCS#8).
    pub key_pem: String,
}

/// Whether a certificate can be used now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// From yesterday until tomorrow.
    Valid,
    /// Until yesterday.
    Expired,
}

impl Authority {
    /// A new one, with a key of its own.
    ///
    /// # Panics
    /// When no key can be made.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each is another authority")]
    pub fn new() -> Self {
        let mut params = params(Vec::new(), Validity::Valid);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A name of its own: who trusts another authority of the same name sees a broken signature, not a stranger.
        params.distinguished_name.push(DnType::CommonName, format!("authority {}", Uuid::now_v7()));
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Its certificate.
    #[must_use]
    pub fn pem(&self) -> String {
        self.pem.clone()
    }

    /// A certificate for a host (name or IP address), which serves for a client as well.
    ///
    /// # Panics
    /// When `host` is no name.
    #[must_use]
    pub fn issue(&self, host: &str, validity: Validity) -> Identity {
        let mut params = params(vec![host.to_owned()], validity);
        params.distinguished_name.push(DnType::CommonName, host);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let cert_pem = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Identity { cert_pem, key_pem: key.serialize_pem() }
    }
}

/// Shows no key.
impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("cert_pem", &self.cert_pem).finish_non_exhaustive()
    }
}

fn params(hosts: Vec<String>, validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::new(hosts).expect("a host's name");
    let now = SystemTime::now();
    let (from, until) = match validity {
        Validity::Valid => (now - MARGIN, now + MARGIN),
        Validity::Expired => (now - 2 * MARGIN, now - MARGIN),
    };
    params.not_before = from.into();
    params.not_after = until.into();
    params
}
