//! A fake LLM provider for tests, demos and benchmarks, where the real one would cost money.
//!
//! The provider implements OpenAI's chat completions, responses and embeddings, Anthropic's messages and
//! Gemini's content well enough for the official SDKs. It is stricter than the real APIs: a request that they
//! would tolerate by luck is a 400 that says why.
//!
//! | path | |
//! |---|---|
//! | `POST /v1/chat/completions`, `/v1/responses`, `/v1/embeddings`, `/v1/messages`, `/v1beta/models/MODEL:generateContent`, `…:streamGenerateContent` | paid: counted and logged before the first byte of the answer |
//! | `POST /v1/messages/count_tokens`, `GET /v1/models` | free |
//! | `GET` and `DELETE /v1/responses/ID`, `GET …/input_items` | free; responses are kept for the provider's life |
//!
//! Other servers that speak OpenAI's API are imitated below `/openai`, `/api` and `/ollama`: see [`route`].
//!
//! **Answers are deterministic.** Text and ids follow from the request's digest (path and decoded body) and its
//! *occurrence*: how many times this process was paid for this digest, counted from 1. So two paid answers of
//! one request differ (`answer 3f2a… #1`, `answer 3f2a… #2`), and a replayed one is the same byte for byte.
//!
//! **A plan** of windows, as subscriptions have, is told in the head of each answer: see [`plan`].
//!
//! **Outages** are phases from its start in which nothing is answered: see [`outage`].
//!
//! **Requests control it** by lines `mock: …` of the last user message that brings no tool results, else of an earlier one
//! whose tool calls have not all had their results, else of the system text: see [`script`].
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answer;
mod anthropic;
mod body;
mod cache;
mod embeddings;
mod gemini;
mod kept;
mod log;
mod openai;
mod options;
mod outage;
mod plan;
mod provider;
pub mod recorded;
mod refusal;
mod request;
mod response;
mod responses;
mod route;
pub mod script;
#[cfg(test)]
mod tests;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use self::provider::Provider;
pub use self::{
    options::{BadOption, Encoding, Failure, FixedUsage, Options, RateLimit},
    outage::Outages,
    plan::Window,
    provider::Received,
};

/// Serves requests until `shutdown` resolves, then drops every connection, answered or not.
///
/// Errors: only that the log file cannot be opened.
pub async fn serve(listener: TcpListener, options: Options, shutdown: impl Future) -> io::Result<()> {
    let provider = Arc::new(Provider::open(options)?);
    accept(listener, provider, shutdown).await;
    Ok(())
}

/// Starts a provider on a free loopback port, and records what it receives for the test to inspect.
///
/// Must be called inside a tokio runtime; the provider ends with its handle.
pub async fn start(options: Options) -> io::Result<Handle> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let addr = listener.local_addr()?;
    let provider = Arc::new(Provider::open(options)?.keeping_requests());
    let task = tokio::spawn(accept(listener, provider.clone(), std::future::pending::<()>()));
    Ok(Handle { addr, provider, task })
}

/// A provider started by [`start`]; dropping it ends the provider and all its connections.
#[derive(Debug)]
pub struct Handle {
    addr: SocketAddr,
    provider: Arc<Provider>,
    task: JoinHandle<()>,
}

impl Handle {
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the base URL as Anthropic's SDK takes it, `http://127.0.0.1:PORT`. OpenAI's SDK needs `/v1` behind it.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns the number of requests that this provider has billed.
    pub fn paid(&self) -> u64 {
        self.provider.paid()
    }

    /// Returns every request in order of arrival, paid or not.
    pub fn requests(&self) -> Vec<Received> {
        self.provider.received()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // The task owns the connections, so they end with it.
        self.task.abort();
    }
}

/// Largest number of connections that wait to be accepted, as `TcpListener::bind` sets it.
const BACKLOG: u32 = 1024;

async fn accept(mut listener: TcpListener, provider: Arc<Provider>, shutdown: impl Future) {
    let mut connections = JoinSet::new();
    let closing = watch::Sender::new(());
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            _ = &mut shutdown => return,
            Some(_) = connections.join_next() => {}
            () = provider.course.refuses(true) => match absent(listener, &provider, &closing).await {
                Ok(again) => listener = again,
                Err(error) => return tracing::error!(%error, "cannot listen again"),
            },
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, provider.clone(), closing.subscribe()));
                }
                // Out of descriptors, or the peer left in the backlog: both pass, and a busy loop would not
                // help.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
        }
    }
}

/// Lets nobody listen until connections are taken again. Answers under way are finished.
///
/// A socket that is bound and does not listen refuses connections, and keeps the port from other processes.
async fn absent(
    listener: TcpListener,
    provider: &Provider,
    closing: &watch::Sender<()>,
) -> io::Result<TcpListener> {
    let addr = listener.local_addr()?;
    drop(listener);
    let bound = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    bound.set_reuseaddr(true)?;
    bound.bind(addr)?;
    provider.course.is_absent(true);
    closing.send_replace(());
    provider.course.refuses(false).await;
    provider.course.is_absent(false);
    bound.listen(BACKLOG)
}

async fn connection(stream: TcpStream, provider: Arc<Provider>, mut closing: watch::Receiver<()>) {
    // A stream's small frames would otherwise wait for the peer's delayed acknowledgement.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let provider = provider.clone();
        async move {
            match provider.course.resets() {
                true => Err(io::Error::from(io::ErrorKind::ConnectionReset)),
                false => Ok(provider.respond(request).await),
            }
        }
    });
    let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let mut served = std::pin::pin!(served);
    // An error here is a peer that left, or an answer cut short on request: there is nobody to tell.
    tokio::select! {
        _ = served.as_mut() => return,
        _ = closing.changed() => served.as_mut().graceful_shutdown(),
    }
    let _ = served.await;
}
