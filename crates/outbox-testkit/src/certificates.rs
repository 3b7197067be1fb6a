//! Certificates for tests of TLS: an authority of one's own, and what it issues.
//!
//! ```
//! use outbox_testkit::certificates::{Authority, Validity};
//!
//! let authority = Authority::new();
//! let server = authority.issue("localhost", Validity::Valid);
//! assert!(authority.pem().contains("CERTIFICATE") && server.key_pem.contains("PRIVATE KEY"));
//! ```

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// An authority with its key, made for one test.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// Whether a certificate is to be accepted for its dates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// For decades to come.
    Valid,
    /// Its time was over years ago.
    Expired,
}

/// A certificate and its private key, in PEM; fit for servers and for clients.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate.
    pub cert_pem: String,
    /// Its private key (PKCS#8).
    pub key_pem: String,
}

impl Authority {
    /// A new authority that nobody trusts yet.
    ///
    /// # Panics
    /// When this machine can't make a key.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let key = KeyPair::generate().expect("a key can be made");
        Self(CertifiedIssuer::self_signed(params, key).expect("an authority can sign itself"))
    }

    /// The authority's own certificate, in PEM: what a client is to trust.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate for a host: a name or an address.
    ///
    /// # Panics
    /// When `host` is neither.
    #[must_use]
    pub fn issue(&self, host: &str, validity: Validity) -> Identity {
        let mut params = CertificateParams::new([host.to_owned()]).expect("a host's name or address");
        params.distinguished_name.push(DnType::CommonName, host);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = match validity {
            Validity::Valid => date_time_ymd(2080, 1, 1),
            Validity::Expired => date_time_ymd(2021, 1, 1),
        };
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params.signed_by(&key, &self.0).expect("the authority can sign");
        Identity { cert_pem: certificate.pem(), key_pem: key.serialize_pem() }
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}
