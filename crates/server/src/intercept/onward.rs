//! Requests on an opened host that are no model's: they go on to that very host as they came.

use std::sync::Arc;

use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

use crate::wire::{headers::is_ours, network::Network, refuse::Refusal};

/// Connection to the host behind one opened connection. Each client's connection has its own, which is kept
/// open between requests.
pub struct Onward {
    host: String,
    port: u16,
    network: Network,
    open: Mutex<Option<SendRequest<Incoming>>>,
}

impl Onward {
    pub fn new(host: String, port: u16, network: Network) -> Onward {
        Onward { host, port, network, open: Mutex::new(None) }
    }

    /// Sends a request as it came, without headers of Outlast's, and returns the answer as it comes.
    ///
    /// Errors: `upstream_unreachable`, `upstream_broke_off`.
    pub async fn send(&self, mut request: Request<Incoming>) -> Result<Response<Incoming>, Refusal> {
        if request.headers().keys().any(is_ours) {
            // A removal would change the order of the others.
            let all = std::mem::take(request.headers_mut());
            for (name, value) in all.iter().filter(|(name, _)| !is_ours(name)) {
                request.headers_mut().append(name, value.clone());
            }
        }
        self.answer(request).await
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Incoming>, Refusal> {
        let mut open = self.open.lock().await;
        let broke = |e: hyper::Error| Refusal::BrokeOff(format!("broke off: {e}"));
        let request = match open.as_mut().filter(|sender| sender.is_ready()) {
            None => request,
            Some(sender) => match sender.try_send_request(request).await {
                Ok(response) => return Ok(response),
                // The host had closed a connection at rest: no byte was sent.
                Err(mut e) => match e.take_message() {
                    Some(request) => request,
                    None => return Err(broke(e.into_error())),
                },
            },
        };
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await.map_err(broke)?;
        *open = Some(sender);
        Ok(response)
    }

    async fn connect(&self) -> Result<SendRequest<Incoming>, Refusal> {
        let unreachable = |e: &dyn std::fmt::Display| Refusal::Unreachable(format!("{}: {e}", self.host));
        let stream = self.network.ways.dial(&self.host, self.port).await.map_err(|e| unreachable(&e))?;
        let name = ServerName::try_from(self.host.clone()).map_err(|e| unreachable(&e))?;
        let tls = TlsConnector::from(Arc::<ClientConfig>::clone(&self.network.tls)).connect(name, stream);
        let tls = tls.await.map_err(|e| unreachable(&e))?;
        let (sender, connection) = http1::Builder::new()
            .preserve_header_case(true)
            .handshake(TokioIo::new(tls))
            .await
            .map_err(|e| unreachable(&e))?;
        tokio::spawn(connection);
        Ok(sender)
    }
}
