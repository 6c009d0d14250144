//! The network of a person's machine, as their variables describe it: the way out, and whose certificates count.

use std::{ffi::OsString, io, path::PathBuf, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::CertificateDer};
use rustls_native_certs::{load_certs_from_paths, load_native_certs};

use super::ways::{BadProxy, Ways};

/// Lookup of a variable of a person's environment; `None` if it is not set.
pub type Variable<'v> = &'v dyn Fn(&str) -> Option<OsString>;

/// Variables that name the proxy, in the order of curl.
const PROXIES: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];

/// Network under which every connection to another machine is made. Cheap to clone.
#[derive(Clone)]
pub struct Network {
    pub ways: Ways,
    /// TLS client that verifies servers by the authorities of this network.
    pub tls: Arc<ClientConfig>,
}

/// Error of variables that describe no network which can be used.
#[derive(Debug, thiserror::Error)]
pub enum BadNetwork {
    #[error("{variable}: {why}")]
    Proxy { variable: &'static str, why: BadProxy },
    #[error("no TLS client could be made: {0}")]
    Tls(#[from] rustls::Error),
}

impl Network {
    /// Reads the network from `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, `SSL_CERT_FILE` and `SSL_CERT_DIR`.
    ///
    /// Authorities that a variable names count in place of all others, as with OpenSSL. Where none is named, those of
    /// the system and those of the web count. Errors: a proxy that cannot be used.
    pub fn of(variable: Variable<'_>) -> Result<Network, BadNetwork> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let except = set("no_proxy").or_else(|| set("NO_PROXY")).unwrap_or_default();
        let ways = match PROXIES.into_iter().find_map(|name| Some((name, set(name)?))) {
            None => Ways::default(),
            Some((variable, proxy)) => Ways::through(&proxy.to_string_lossy(), &except.to_string_lossy())
                .map_err(|why| BadNetwork::Proxy { variable, why })?,
        };
        Ok(Network { ways, tls: Arc::new(Authorities::of(variable).client()?) })
    }
}

/// Certificate authorities of a machine.
struct Authorities {
    all: Vec<CertificateDer<'static>>,
    /// Whether variables name them. They then count in place of all others.
    named: bool,
}

impl Authorities {
    /// Reads the authorities of `SSL_CERT_FILE` and `SSL_CERT_DIR`, or else the system's. A file that cannot be read is
    /// logged.
    fn of(variable: Variable<'_>) -> Authorities {
        let path = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let (file, directory) = (path("SSL_CERT_FILE"), path("SSL_CERT_DIR"));
        let read = match (&file, &directory) {
            (None, None) => load_native_certs(),
            (file, directory) => load_certs_from_paths(file.as_deref(), directory.as_deref()),
        };
        for why in &read.errors {
            tracing::warn!("certificate authorities are left out: {why}");
        }
        let named = (file.is_some() || directory.is_some()) && !read.certs.is_empty();
        Authorities { all: read.certs, named }
    }

    fn client(self) -> Result<ClientConfig, rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.all);
        if !self.named {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        let begun = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let begun = begun.with_safe_default_protocol_versions()?;
        Ok(begun.with_root_certificates(roots).with_no_client_auth())
    }
}

/// Returns the certificate authorities of this machine as PEM: those that variables name, or the system's.
///
/// Errors: there are none.
pub fn authorities(variable: Variable<'_>) -> io::Result<String> {
    let all = Authorities::of(variable).all;
    match all.is_empty() {
        true => Err(io::Error::other("this machine has no certificate authorities")),
        false => Ok(all.iter().map(|der| pem(der)).collect()),
    }
}

/// Returns a certificate as PEM.
pub(crate) fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]);
    let body: String = lines.map(|line| format!("{line}\n")).collect();
    format!("-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(variables: &[(&str, &str)]) -> Result<Network, BadNetwork> {
        let found = |name: &str| variables.iter().find(|(known, _)| *known == name);
        Network::of(&|name| found(name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_proxy_is_the_one_that_the_variables_name() {
        let straight = |variables: &[(&str, &str)]| {
            let network = network(variables).unwrap_or_else(|e| panic!("{e}"));
            ["llm.corp", "api.openai.com", "127.0.0.1"].map(|host| network.ways.are_straight(host))
        };
        assert_eq!(straight(&[]), [true; 3]);
        assert_eq!(straight(&[("HTTPS_PROXY", "")]), [true; 3]);
        assert_eq!(straight(&[("HTTP_PROXY", "http://p")]), [true; 3], "it is for http://");
        for name in PROXIES {
            assert_eq!(straight(&[(name, "http://p")]), [false, false, true], "{name}");
        }
        assert_eq!(straight(&[("HTTPS_PROXY", "http://p"), ("NO_PROXY", ".corp")]), [true, false, true]);
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_named_without_its_password() {
        let told = network(&[("ALL_PROXY", "socks5://me:s3cret@h")]).err().map(|e| e.to_string());
        let told = told.unwrap_or_default();
        assert!(told.starts_with("ALL_PROXY: ") && told.contains("had the scheme socks5"), "{told}");
        assert!(!told.contains("s3cret"), "{told}");
    }

    #[test]
    fn named_authorities_count_in_place_of_all_others() {
        let own = rcgen::generate_simple_self_signed(vec!["llm.corp".into()]).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), own.cert.pem()).unwrap();
        let all = |path: &str| Authorities::of(&|name| (name == "SSL_CERT_FILE").then(|| path.into()));
        let named = all(file.path().to_str().unwrap());
        assert_eq!((named.all, named.named), (vec![own.cert.der().clone()], true));
        let gone = all("/not/there.pem");
        assert!(gone.all.is_empty() && !gone.named, "the web's count where no file can be read");
    }
}
