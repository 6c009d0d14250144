//! Certificate authority of one attempt: it can vouch for the opened hosts and for no other, and its key is gone when
//! it has signed.

use std::sync::Arc;

use outlast_core::words::Micros;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CidrSubnet, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, KeyPair, KeyUsagePurpose, NameConstraints, date_time_ymd,
};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};

/// Number of days that the certificates are valid: longer than an attempt lives. Each attempt has new ones.
const DAYS: i64 = 90;

/// Error: the certificates could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no certificate could be made: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("no TLS server could be made: {0}")]
    Tls(#[from] rustls::Error),
    #[error("this machine's clock is beyond every calendar: {0}")]
    Clock(String),
}

/// Certificate authority, and a TLS server whose certificate the authority has signed.
pub struct Authority {
    pem: String,
    server: Arc<ServerConfig>,
}

/// Certificates of an authority and of a server, and the server's private key.
struct Issued {
    authority: String,
    chain: Vec<rustls::pki_types::CertificateDer<'static>>,
    key: KeyPair,
}

impl Authority {
    /// Makes an authority for `hosts`, DNS names, and one certificate with all of them.
    ///
    /// The authority's key lives in memory until that certificate is signed. The server's key lives as long as the
    /// result. Neither is written anywhere.
    pub fn new(hosts: &[String], now: Micros) -> Result<Authority, Error> {
        let issued = issue(hosts, hosts, now)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(issued.key.serialize_der()));
        let mut server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(issued.chain, key)?;
        // The proxy reads calls of HTTP/1.1 only.
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Authority { pem: issued.authority, server: Arc::new(server) })
    }

    /// Returns the authority's certificate.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    pub fn server(&self) -> Arc<ServerConfig> {
        self.server.clone()
    }
}

/// Makes an authority that may vouch for `permitted`, and a certificate of it for `named`.
fn issue(permitted: &[String], named: &[String], now: Micros) -> Result<Issued, Error> {
    let day = |from: i64| -> Result<_, Error> {
        let at = jiff::Timestamp::from_second(now.0.div_euclid(1_000_000) + from * 24 * 60 * 60)
            .map_err(|e| Error::Clock(e.to_string()))?;
        let date = at.to_zoned(jiff::tz::TimeZone::UTC).date();
        Ok(date_time_ymd(date.year().into(), date.month() as u8, date.day() as u8))
    };
    // Other clocks of this network may be behind.
    let (from, until) = (day(-1)?, day(DAYS)?);
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, "Outlast: calls of one run");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    authority.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    authority.name_constraints = Some(NameConstraints {
        // What is permitted for a host is permitted for those below it.
        permitted_subtrees: permitted
            .iter()
            .filter(|host| !host.starts_with("*."))
            .cloned()
            .map(GeneralSubtree::DnsName)
            .collect(),
        // Names of DNS constrain no addresses.
        excluded_subtrees: vec![
            GeneralSubtree::IpAddress(CidrSubnet::V4([0; 4], [0; 4])),
            GeneralSubtree::IpAddress(CidrSubnet::V6([0; 16], [0; 16])),
        ],
    });
    (authority.not_before, authority.not_after) = (from, until);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let mut server = CertificateParams::new(named)?;
    server.distinguished_name.push(DnType::CommonName, "Outlast: a provider's host");
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    server.use_authority_key_identifier_extension = true;
    (server.not_before, server.not_after) = (from, until);
    let key = KeyPair::generate()?;
    let certificate = server.signed_by(&key, &authority)?;
    let chain = vec![certificate.der().clone(), authority.as_ref().der().clone()];
    Ok(Issued { authority: authority.pem(), chain, key })
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    fn now() -> Micros {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Micros(since.as_micros() as i64)
    }

    /// Returns what OpenSSL says of a certificate for `named` below an authority for `permitted`, and whether it is good
    /// for `host`.
    fn openssl(permitted: &[&str], named: &[&str], host: &str) -> (bool, String) {
        let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let issued = issue(&owned(permitted), &owned(named), now()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (authority, server) = (dir.path().join("ca.pem"), dir.path().join("server.pem"));
        fs::write(&authority, &issued.authority).unwrap();
        fs::write(&server, crate::wire::network::pem(&issued.chain[0])).unwrap();
        let kind = if host.parse::<std::net::IpAddr>().is_ok() { "-verify_ip" } else { "-verify_hostname" };
        let out = Command::new("openssl")
            .args(["verify", "-x509_strict", "-purpose", "sslserver", kind, host, "-CAfile"])
            .arg(&authority)
            .arg(&server)
            .output()
            .unwrap();
        let said = [out.stdout, out.stderr].concat();
        (out.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    #[test]
    fn an_authority_vouches_for_the_opened_hosts_and_for_no_other() {
        let hosts = ["api.openai.com", "api.anthropic.com"];
        let named = ["api.openai.com", "api.anthropic.com", "*.api.openai.com"];
        for host in ["api.anthropic.com", "eu.api.openai.com"] {
            let (good, said) = openssl(&named, &named, host);
            assert!(good, "{host}: {said}");
        }
        for (named, host) in
            [("bank.example", "bank.example"), ("openai.com", "openai.com"), ("127.0.0.1", "127.0.0.1")]
        {
            let (good, said) = openssl(&hosts, &[named], host);
            assert!(!good && said.contains("subtree violation"), "{named}: {said}");
        }
    }

    #[test]
    fn a_server_offers_http_1_1_alone_and_each_authority_is_its_own() {
        let hosts = ["api.openai.com".to_owned()];
        let (one, other) = (Authority::new(&hosts, now()).unwrap(), Authority::new(&hosts, now()).unwrap());
        assert_eq!(one.server().alpn_protocols, [b"http/1.1".to_vec()]);
        assert_ne!(one.pem(), other.pem());
    }
}
