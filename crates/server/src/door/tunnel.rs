//! `CONNECT`: connections of the run's programs to other hosts. Those to providers' hosts are opened; all others are
//! carried byte for byte.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn, upgrade::Upgraded};
use hyper_util::rt::{TokioIo, TokioTimer};
use outlast_core::run::Claims;
use rustls::server::Acceptor;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use super::{Proxy, upwards::Upwards};
use crate::{
    dialect::Upstream,
    intercept::{Fate, Intercept, allowed::dial_public, facts, fate, onward::Onward, opened::Destination},
    proxy::{config::Seen, host::Host, named::To, seat},
    wire::{
        body::AnswerBody,
        network::bare,
        refuse::Refusal,
        socket::{Socket, Wire},
        target::move_key,
        who::{self, Who},
    },
};

/// Time in which a program has to complete its TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(60);

/// Largest number of bytes that are read of a TLS handshake to find its server name.
const MAX_HELLO: usize = 64 << 10;

/// Code of a connection to an opened host that a program gave up, or began wrongly.
pub const NOT_OPENED: &str = "not_opened";

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Body of an answer in an opened connection: our own, or another host's as it comes.
type Body = UnsyncBoxBody<Bytes, Error>;

/// Connection that the proxy has opened (decrypted): the run that made it, and the host that it is for.
struct Inside {
    claims: Claims,
    host: String,
    port: u16,
    intercept: Arc<Intercept>,
    onward: Onward,
}

impl Proxy {
    /// Answers a `CONNECT`, and starts the task that serves the connection after the answer.
    pub(super) async fn connect(
        &self,
        intercept: &Arc<Intercept>,
        host: &Arc<Host>,
        request: Request<Incoming>,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let claims = who::of_connect(&host.token_keys, request.headers())
            .map_err(|why| Refusal::ProxyCredentials { why })?;
        seat::serves(host, &Who::Token(claims))?;
        if host.is_draining() {
            return Err(Refusal::Draining);
        }
        let (name, port) = target(request.uri())?;
        if intercept.opened.has(&name, port) {
            let onward = Onward::new(name.clone(), port, intercept.network.clone());
            let inside = Inside { claims, host: name, port, intercept: intercept.clone(), onward };
            let proxy = self.clone();
            tokio::spawn(async move { proxy.open(inside, hyper::upgrade::on(request).await).await });
            return Ok(Response::new(AnswerBody::plain(Bytes::new())));
        }
        let confined = match intercept.permits(&name, port) {
            None => false,
            Some(true) => true,
            Some(false) => {
                let refused = Refusal::NetRefused { host: name, port };
                let message = refused.to_string();
                let hint = Some("hosts that it may reach are given with --allow-net, in a new run".into());
                host.saw(Seen::Refused { code: refused.code().into(), message, hint });
                return Err(refused);
            }
        };
        let reached = match confined {
            true => dial_public(&intercept.network.ways, &name, port).await,
            false => intercept.network.ways.dial(&name, port).await,
        };
        let mut there = reached.map_err(|e| {
            tracing::info!(host = name, port, error = %e, "a tunnel was not made");
            Refusal::Unreachable(format!("{name}:{port}: {e}"))
        })?;
        tokio::spawn(async move {
            let Ok(here) = hyper::upgrade::on(request).await else { return };
            let mut here = TokioIo::new(here);
            if confined {
                // Behind one address there may be other hosts.
                match tokio::time::timeout(HANDSHAKE, hello(&mut here, &name)).await {
                    Ok(Some(begun)) if there.write_all(&begun).await.is_ok() => {}
                    _ => return,
                }
            }
            // Either side that goes ends the other.
            let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
        });
        Ok(Response::new(AnswerBody::plain(Bytes::new())))
    }

    /// Serves the requests in an opened connection.
    async fn open(self, inside: Inside, upgraded: Result<Upgraded, hyper::Error>) {
        let Ok(upgraded) = upgraded else { return };
        let tls = match tokio::time::timeout(HANDSHAKE, handshake(&inside, upgraded)).await {
            Ok(Ok(tls)) => tls,
            Ok(Err(why)) => return self.not_opened(&inside.host, &why),
            Err(_) => return,
        };
        let wire = Wire::default();
        let socket = Socket::new(tls, wire.clone());
        let inside = Arc::new(inside);
        let service = service_fn(move |request| {
            let (proxy, inside, wire) = (self.clone(), inside.clone(), wire.clone());
            async move { Ok::<_, Infallible>(proxy.in_tunnel(&inside, request, wire).await) }
        });
        let mut server = http1::Builder::new();
        server
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from_secs(60))
            .preserve_header_case(true);
        let _ = server.serve_connection(TokioIo::new(socket), service).await;
    }

    /// Reports to the person that a program did not accept the run's certificate, so that its calls do not
    /// get through.
    fn not_opened(&self, host: &str, why: &NotOpened) {
        let message = format!("the connection of a program to {host} was not opened: {why}");
        let hint = matches!(why, NotOpened::Tls(_)).then(|| {
            "a program that has its authorities elsewhere is told of one more: see docs/guides/interception.md".into()
        });
        self.host().saw(Seen::Refused { code: NOT_OPENED.into(), message, hint });
    }

    /// Answers one request that came in an opened connection.
    async fn in_tunnel(&self, inside: &Inside, request: Request<Incoming>, wire: Wire) -> Response<Body> {
        let host = self.host();
        host.saw(Seen::Request);
        let answered = match fate(&inside.intercept.opened, &inside.host, inside.port, &request) {
            Fate::Passes => {
                host.saw(Seen::Passed);
                match inside.onward.send(request).await {
                    Ok(response) => return response.map(|body| body.map_err(Error::from).boxed_unsync()),
                    Err(refusal) => Err((refusal, None)),
                }
            }
            Fate::Known(place) => self.known(&host, inside, place, request, wire).await,
            Fate::Refused(refusal) => Err((refusal, None)),
        };
        let response = answered.unwrap_or_else(|(refusal, shape): (Refusal, Option<Upstream>)| {
            host.metrics.refused(refusal.code());
            refusal
                .response(shape.unwrap_or_else(|| inside.intercept.opened.shape(&inside.host, inside.port)))
        });
        response.map(|body| body.map_err(Error::from).boxed_unsync())
    }

    /// Answers a request to an API that the proxy knows in the same way as if the request had come by a base
    /// URL.
    async fn known(
        &self,
        host: &Arc<Host>,
        inside: &Inside,
        place: Destination,
        request: Request<Incoming>,
        wire: Wire,
    ) -> Result<Response<AnswerBody>, (Refusal, Option<Upstream>)> {
        let (mut parts, body) = request.into_parts();
        let shaped = |refusal: Refusal| (refusal, Some(place.to.shape()));
        let _arriving = host.arrives();
        if host.is_draining() {
            return Err(shaped(Refusal::Draining));
        }
        let bad = |_| shaped(Refusal::BadTarget("the target is no path"));
        parts.uri = place.target.parse::<Uri>().map_err(bad)?;
        move_key(&mut parts).map_err(|e| shaped(e.into()))?;
        let access = &host.config.access;
        let caller = who::in_tunnel(access, &host.token_keys, inside.claims, &parts.uri, &parts.headers)
            .map_err(|e| shaped(e.into()))?;
        let facts = facts(&place.to);
        let (named, own) = match place.to {
            To::Named(named) => (Some(named), None),
            To::Own(upstream) => (None, Some(upstream)),
        };
        let upwards = Upwards { caller, named, facts };
        match own.zip(place.base) {
            Some((upstream, base)) => {
                let regional = host.under(host.config.at(upstream, base));
                self.upstream(&regional, upwards, parts, body, wire).await
            }
            None => self.upstream(host, upwards, parts, body, wire).await,
        }
    }
}

/// Returns the host and port of a `CONNECT`.
fn target(uri: &Uri) -> Result<(String, u16), Refusal> {
    let bad = || Refusal::BadTarget("CONNECT wants HOST:PORT");
    let authority = uri.authority().filter(|a| uri.scheme().is_none() && !a.as_str().contains('@'));
    let (host, port) = authority.and_then(|a| Some((bare(a.host()), a.port_u16()?))).ok_or_else(bad)?;
    if host.is_empty() { Err(bad()) } else { Ok((host.to_ascii_lowercase(), port)) }
}

/// Reason for which a connection to an opened host is not served.
#[derive(Debug, thiserror::Error)]
enum NotOpened {
    /// The name in the TLS handshake is not the one of the `CONNECT`.
    #[error("it asked for the certificate of {0}")]
    OtherName(String),
    #[error("TLS: {0}")]
    Tls(#[from] std::io::Error),
}

/// Does the handshake in the host's place. The program has to name the host that it connected to.
async fn handshake(inside: &Inside, upgraded: Upgraded) -> Result<TlsStream<TokioIo<Upgraded>>, NotOpened> {
    let begun = LazyConfigAcceptor::new(Acceptor::default(), TokioIo::new(upgraded)).await?;
    let named = begun.client_hello().server_name().unwrap_or("no host").to_owned();
    if !named.eq_ignore_ascii_case(&inside.host) {
        return Err(NotOpened::OtherName(named));
    }
    Ok(begun.into_stream(inside.intercept.server()).await?)
}

/// Reads the beginning of a TLS handshake that names `host`. Returns its bytes; `None` if it is none, or names another.
async fn hello(from: &mut TokioIo<Upgraded>, host: &str) -> Option<Vec<u8>> {
    let (mut acceptor, mut begun) = (Acceptor::default(), Vec::new());
    loop {
        let at = begun.len();
        if from.read_buf(&mut begun).await.ok()? == 0 || begun.len() > MAX_HELLO {
            return None;
        }
        let mut fresh = &begun[at..];
        while !fresh.is_empty() {
            acceptor.read_tls(&mut fresh).ok()?;
        }
        if let Some(accepted) = acceptor.accept().ok()? {
            let is_it =
                accepted.client_hello().server_name().is_some_and(|name| name.eq_ignore_ascii_case(host));
            return is_it.then_some(begun);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connect_names_a_host_and_a_port() {
        let check = |text: &str, wanted: Option<(&str, u16)>| {
            let found = target(&text.parse().unwrap()).ok();
            assert_eq!(found, wanted.map(|(host, port)| (host.to_owned(), port)), "{text}");
        };
        check("API.openai.com:443", Some(("api.openai.com", 443)));
        check("[::1]:8443", Some(("::1", 8443)));
        check("api.openai.com", None);
        check("me@api.openai.com:443", None);
        check("/v1/messages", None);
    }
}
