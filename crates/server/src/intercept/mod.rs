//! Interception: a run's programs reach every host through its proxy, which opens the connections to providers' hosts.
//!
//! `opened` knows the hosts, `authority` has the certificates for them, `fate` decides on each request, `onward` sends on
//! what is no model's call. The door answers `CONNECT`.

pub mod allowed;
pub mod authority;
mod fate;
pub mod onward;
pub mod opened;

use std::sync::Arc;

use outlast_core::words::Micros;
use parking_lot::RwLock;
use rustls::ServerConfig;

pub use self::fate::{Fate, facts, fate};
use self::{
    allowed::Allowed,
    authority::{Authority, Error},
    opened::Opened,
};
pub use crate::wire::network::{Ways, is_excepted};
use crate::{proxy::named::Providers, wire::network::Network};

/// Interception of one run's connections.
pub struct Intercept {
    pub(crate) opened: Opened,
    authority: RwLock<Arc<Authority>>,
    pub(crate) network: Network,
    /// Hosts that may be reached besides the opened ones; `None`: any host.
    allowed: Option<Vec<Allowed>>,
}

impl Intercept {
    /// Prepares the interception, with a new certificate authority. Errors: the certificates could not be made.
    pub fn new(providers: &Providers, network: Network, now: Micros) -> Result<Intercept, Error> {
        let opened = Opened::of(providers);
        let authority = RwLock::new(Arc::new(Authority::new(&opened.hosts(), now)?));
        Ok(Intercept { opened, authority, network, allowed: None })
    }

    /// Makes a new authority, for a new attempt. Returns its certificate (PEM), which programs have to trust from here on.
    pub fn renew(&self, now: Micros) -> Result<String, Error> {
        let fresh = Arc::new(Authority::new(&self.opened.hosts(), now)?);
        let pem = fresh.pem().to_owned();
        *self.authority.write() = fresh;
        Ok(pem)
    }

    /// Returns the names of the hosts whose connections are opened.
    pub fn hosts(&self) -> Vec<String> {
        self.opened.hosts()
    }

    /// Returns the TLS server whose certificate the newest authority has signed.
    pub fn server(&self) -> Arc<ServerConfig> {
        self.authority.read().server()
    }

    /// Confines connections to the opened hosts and to those of `allowed`; `None` does not confine them.
    pub fn only(self, allowed: Option<Vec<Allowed>>) -> Intercept {
        Intercept { allowed, ..self }
    }

    /// Returns whether a connection to the host is permitted; `None` if the run's network is not confined.
    pub fn permits(&self, host: &str, port: u16) -> Option<bool> {
        self.allowed.as_ref().map(|all| all.iter().any(|one| one.permits(host, port)))
    }
}
