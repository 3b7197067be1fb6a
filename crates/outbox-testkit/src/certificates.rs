//! Certificates for tests of TLS: a good one, one that has expired, one for another host, one of another authority.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

/// A certificate authority of its own, which nothing trusts until it is told to.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// When an issued certificate holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// Now, and for as long as anybody will run these tests.
    Valid,
    /// Not any more: it ended years ago.
    Expired,
}

/// A certificate with its private key, both in PEM (the key as PKCS#8).
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate alone, without the authority's.
    pub cert_pem: String,
    /// Its private key.
    pub key_pem: String,
}

impl Authority {
    /// Makes an authority with a new key.
    ///
    /// # Panics
    /// When no certificate can be made, which is a defect of this module.
    #[expect(clippy::new_without_default, reason = "each one is different")]
    #[must_use]
    pub fn new() -> Self {
        let mut params = params(Validity::Valid);
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate of the authority").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Its certificate in PEM, for whoever shall trust it.
    #[must_use]
    pub fn pem(&self) -> String {
        self.pem.clone()
    }

    /// Issues a certificate that serves and authenticates `host`, a name or an IP address. A client's certificate
    /// takes the name of the client as host; it is its common name too.
    ///
    /// # Panics
    /// When the host is no name in ASCII.
    #[must_use]
    pub fn issue(&self, host: &str, validity: Validity) -> Identity {
        let mut params = params(validity);
        params.distinguished_name.push(DnType::CommonName, host);
        params.subject_alt_names = vec![match host.parse::<IpAddr>() {
            Ok(address) => rcgen::SanType::IpAddress(address),
            Err(_) => rcgen::SanType::DnsName(host.try_into().expect("a name in ASCII")),
        }];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate");
        Identity { cert_pem: cert.pem(), key_pem: key.serialize_pem() }
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

fn params(validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    (params.not_before, params.not_after) = match validity {
        Validity::Valid => (date_time_ymd(2020, 1, 1), date_time_ymd(2120, 1, 1)),
        Validity::Expired => (date_time_ymd(2020, 1, 1), date_time_ymd(2020, 2, 1)),
    };
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_pem_and_no_two_are_alike() {
        let authority = Authority::new();
        let identity = authority.issue("localhost", Validity::Valid);
        assert!(authority.pem().starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(identity.cert_pem.starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(identity.key_pem.starts_with("-----BEGIN PRIVATE KEY-----"), "PKCS#8");
        assert_ne!(identity, authority.issue("localhost", Validity::Valid));
        assert_ne!(authority.pem(), Authority::new().pem());
        assert!(!format!("{identity:?}").contains("PRIVATE"));
        let _ = authority.issue("127.0.0.1", Validity::Expired);
    }
}
