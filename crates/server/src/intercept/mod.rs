//! Interception: a run's programs reach every host through its proxy, which opens the connections to providers' hosts.
//!
//! `opened` knows the hosts, `authority` has the certificates for them, `fate` decides on each request, `onward` sends on
//! what is no model's call. The door answers `CONNECT`.

pub mod allowed;
pub mod authority;
mod fate;
pub mod onward;
pub mod opened;

use std::{
    io,
    sync::{Arc, PoisonError, RwLock},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::Request;
use hyper_rustls::ConfigBuilderExt as _;
use outlast_core::words::id::Micros;
use rustls::{ClientConfig, ServerConfig, crypto::ring};

pub use self::fate::{Fate, facts};
use self::{
    allowed::Allowed,
    authority::{Authority, Error},
    onward::Onward,
    opened::Opened,
};
pub use crate::wire::ways::{BadProxy, Ways, is_excepted, is_loopback};

use crate::{
    dialect::Upstream,
    proxy::{named::Providers, upstream::Pool},
};

/// Interception of one run's connections.
pub struct Intercept {
    opened: Opened,
    authority: RwLock<Arc<Authority>>,
    ways: Ways,
    tls: Arc<ClientConfig>,
    /// Hosts that may be reached besides the opened ones; `None`: any host.
    allowed: Option<Vec<Allowed>>,
}

impl Intercept {
    /// Prepares the interception, with a new certificate authority. `tls`: how the servers behind opened
    /// connections are verified. Errors: the certificates could not be made.
    pub fn new(
        providers: &Providers,
        ways: Ways,
        tls: ClientConfig,
        now: Micros,
    ) -> Result<Intercept, Error> {
        let opened = Opened::of(providers);
        let authority = RwLock::new(Arc::new(Authority::new(&opened.hosts(), now)?));
        Ok(Intercept { opened, authority, ways, tls: Arc::new(tls), allowed: None })
    }

    /// Makes a new authority, for a new attempt. Returns its certificate (PEM), which programs have to trust from here on.
    pub fn renew(&self, now: Micros) -> Result<String, Error> {
        let fresh = Arc::new(Authority::new(&self.opened.hosts(), now)?);
        let pem = fresh.pem().to_owned();
        *self.authority.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(pem)
    }

    /// Returns the names of the hosts whose connections are opened.
    pub fn hosts(&self) -> Vec<String> {
        self.opened.hosts()
    }

    pub fn opens(&self, host: &str, port: u16) -> bool {
        self.opened.has(host, port)
    }

    /// Returns the provider whose error format the clients of a host expect.
    pub fn shape(&self, host: &str, port: u16) -> Upstream {
        self.opened.shape(host, port)
    }

    /// Decides on a request in an opened connection to a host.
    pub fn fate<B>(&self, host: &str, port: u16, request: &Request<B>) -> Fate {
        fate::fate(&self.opened, host, port, request)
    }

    /// Returns the TLS server whose certificate the newest authority has signed.
    pub fn server(&self) -> Arc<ServerConfig> {
        self.authority.read().unwrap_or_else(PoisonError::into_inner).server()
    }

    /// Returns a pool for calls that have to go through the proxy before this machine; `None` without one.
    pub fn pool(&self) -> Option<Pool> {
        let is_behind = self.ways != Ways::default();
        is_behind.then(|| Pool::through(self.ways.clone(), ClientConfig::clone(&self.tls)))
    }

    /// Confines connections to the opened hosts and to those of `allowed`; `None` does not confine them.
    pub fn only(self, allowed: Option<Vec<Allowed>>) -> Intercept {
        Intercept { allowed, ..self }
    }

    /// Returns whether a connection to the host is permitted; `None` if the run's network is not confined.
    pub fn permits(&self, host: &str, port: u16) -> Option<bool> {
        self.allowed.as_ref().map(|all| all.iter().any(|one| one.permits(host, port)))
    }

    pub fn ways(&self) -> &Ways {
        &self.ways
    }

    pub fn onward(&self, host: &str, port: u16) -> Onward {
        Onward::new(host.to_owned(), port, self.ways.clone(), self.tls.clone())
    }
}

/// Returns the authorities that this machine trusts (PEM): those of `SSL_CERT_FILE` and `SSL_CERT_DIR`, or the system's.
///
/// Errors: there are none.
pub fn machines_authorities() -> io::Result<String> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let why = found.errors.first().map_or_else(String::new, |e| format!(": {e}"));
        return Err(io::Error::other(format!("this machine has no certificate authorities{why}")));
    }
    Ok(found.certs.iter().map(|der| pem(der)).collect())
}

/// Returns a certificate as PEM.
pub(crate) fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]);
    let body: String = lines.map(|line| format!("{line}\n")).collect();
    format!("-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n")
}

/// Returns a TLS client that trusts the machine's own authorities (with `SSL_CERT_FILE`), or where there are none, those
/// of the web. Behind a company's proxy only the machine knows its authority.
pub fn client() -> Result<ClientConfig, Error> {
    let begun = || {
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
    };
    Ok(match begun()?.with_native_roots() {
        Ok(native) => native.with_no_client_auth(),
        Err(_) => begun()?.with_webpki_roots().with_no_client_auth(),
    })
}
