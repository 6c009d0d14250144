//! The HTTP listener and its routing.
//!
//! The path of a request decides who answers: the page, our own routes, an MCP server, or the LLM proxy.
//!
//! The end of runs that nobody asks in any more: those of header callers, which no process drives to their end.

mod tunnel;
mod upwards;

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use http::{Method, Request, Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use outlast_core::{
    engine::{Tell, Word, state::transaction::Conflicts},
    reads::runs::idle_since,
    run::Status,
    store::{self, Ask as _, Durability, Error},
    words::{Entropy, RunNo, Seq},
};
use parking_lot::RwLock;
use tokio::net::TcpListener;
use tracing::{Instrument as _, debug_span};

use self::upwards::Upwards;
use crate::{
    api::{self, Api},
    dialect::{HeaderFacts, Upstream, is_geminis},
    intercept::Intercept,
    mcp::{
        front::{self, Front},
        recorder,
    },
    node::{HEARTBEAT, Node},
    page,
    proxy::{
        host::Host,
        named,
        seat::{self, forget_run},
        stamp::Speaks,
    },
    state::{StateDesk, Writer},
    trouble::Trouble,
    wire::{
        body::AnswerBody,
        incoming,
        refuse::Refusal,
        shown,
        socket::{Socket, Wire},
        target,
        who::{self, Who},
    },
};

pub use crate::proxy::config::{Config, Observer, RunFiles, Seen};
pub use crate::proxy::{
    named::{AuthHeader, BadName, BadPattern, Named, Pattern, Providers},
    record::{Answer as StoredAnswer, BadRecord},
};
pub use crate::{
    page::Shows,
    proxy::upstream::{Key, Provider},
    wire::{
        access::{Access, NotLetIn},
        credentials::bare,
        network::{BadNetwork, Network, authorities, later},
        sessions::Sessions,
        tokens::ApiTokens,
    },
};
pub use tunnel::NOT_OPENED;
pub use upwards::TOO_LARGE;

/// HTTP server: the LLM proxy and the routes beside it. Cheap to clone.
#[derive(Clone)]
pub struct Proxy {
    host: Arc<RwLock<Arc<Host>>>,
    intercept: Option<Arc<Intercept>>,
    api: Api,
    page: Option<Shows>,
    mcp: Option<Arc<Front>>,
}

impl Proxy {
    /// Creates a proxy on the store of `node`. `observer` gets every event of the proxy.
    pub fn new(
        node: Arc<Node>,
        entropy: &Arc<dyn Entropy>,
        config: Config,
        observer: Option<Observer>,
    ) -> Result<Proxy, Error> {
        // Over REST each request is a transaction of its own, so that no conflict of several can arise here.
        let desk = StateDesk::new(&node, entropy.clone(), Conflicts::default(), Writer::NoRun);
        let host = Host::new(node, &**entropy, config, observer)?;
        Ok(Proxy {
            host: Arc::new(RwLock::new(host)),
            intercept: None,
            api: Api::new(desk),
            page: None,
            mcp: None,
        })
    }

    /// Returns the bytes so far of a run's streamed answers that still arrive, by their calls' entries.
    pub fn so_far(&self, run: RunNo) -> HashMap<Seq, Vec<u8>> {
        self.host().registry.so_far(run)
    }

    /// Applies another configuration to requests that arrive from now on. Requests in progress keep the configuration
    /// that they began with. Sessions of the page stay valid.
    pub fn reconfigure(&self, mut config: Config) {
        config.access.sessions = self.host().config.access.sessions.clone();
        self.configure(config);
    }

    fn configure(&self, config: Config) {
        let mut host = self.host.write();
        *host = host.under(config);
    }

    fn host(&self) -> Arc<Host> {
        self.host.read().clone()
    }

    /// Adds the page, for those who open a link of `sessions`.
    pub fn with_page(self, shows: Shows, sessions: Arc<Sessions>) -> Proxy {
        let mut config = self.host().config.clone();
        config.access.sessions = Some(sessions);
        self.configure(config);
        Proxy { page: Some(shows), ..self }
    }

    /// Adds the MCP servers of `front`, which are served at `/mcp/NAME`.
    pub fn with_mcp(self, front: Arc<Front>) -> Proxy {
        Proxy { mcp: Some(front), ..self }
    }

    /// Adds the answers to `CONNECT` requests of the run's programs.
    pub fn with_intercept(self, intercept: Arc<Intercept>) -> Proxy {
        Proxy { intercept: Some(intercept), ..self }
    }

    /// Shares the limits of upstreams with the other servers of the store from now on: a limited call waits until this
    /// server has a share. Does nothing on a store that other machines do not use.
    pub fn begin_sharing(&self) {
        let host = self.host();
        if host.store.is_shared() {
            host.sharing.begin(&host);
        }
    }

    /// Settles this server's shares again and again, without end: see [`Proxy::begin_sharing`].
    pub async fn keep_sharing(self) {
        let trouble = Arc::new(Trouble::new("shares of upstreams' limits not settled"));
        while self.host().store.is_shared() {
            let (host, trouble) = (self.host(), trouble.clone());
            let settling = tokio::task::spawn_blocking(move || {
                trouble.note(host.sharing.settle(&host).as_ref().err());
            });
            if settling.await.is_err() {
                return;
            }
            tokio::time::sleep(HEARTBEAT).await;
        }
    }

    /// Gives this server's shares up before it leaves the store, but for what its calls have used. Blocks on the store.
    pub fn end_sharing(&self) -> Result<(), Error> {
        let host = self.host();
        if host.store.is_shared() { host.sharing.leave(&host) } else { Ok(()) }
    }

    /// Serves `listener` until `shutdown` resolves, and then drains.
    ///
    /// During the drain, which takes at most the time `drain`, `/readyz` and new requests get 503, and calls in flight
    /// end and go to their clients. Calls left after that become `unknown` in `Node::leave`.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>, drain: Duration) {
        let host = self.host();
        let polling = tokio::spawn(host.clone().poll_for_others());
        // Polls, because a stop is rare, and calls should not have to wake a drain.
        let drained = async {
            shutdown.await;
            host.drain();
            let at_rest = async {
                while !host.is_at_rest() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            if tokio::time::timeout(drain, at_rest).await.is_err() {
                tracing::warn!("calls were still in flight at the end; they stay charged, as unknown");
            }
        };
        tokio::select! {
            () = self.accept(&listener) => {}
            () = drained => {}
        }
        polling.abort();
    }

    /// Accepts connections of the run's programs on another listener, until the task is aborted.
    pub async fn serve_also(self, listener: TcpListener) {
        self.accept(&listener).await;
    }

    /// Accepts connections, for ever.
    async fn accept(&self, listener: &TcpListener) {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(e) => {
                    // Out of file descriptors, for example: other connections may close.
                    tracing::warn!(error = %e, "cannot accept");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let proxy = self.clone();
            let connection = async move {
                // Without `nodelay` a small write can wait 40 ms for the client's acknowledgement.
                let _ = stream.set_nodelay(true);
                let wire = Wire::default();
                let socket = Socket::new(stream, wire.clone());
                let service = service_fn(move |request| {
                    let (proxy, wire) = (proxy.clone(), wire.clone());
                    async move { Ok::<_, Infallible>(proxy.answer(request, wire).await) }
                });
                let mut server = http1::Builder::new();
                server.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(60));
                // A client that hangs up is not an error of the server.
                let _ = server.serve_connection(TokioIo::new(socket), service).with_upgrades().await;
            };
            tokio::spawn(connection.instrument(debug_span!("connection", %peer)));
        }
    }

    /// Makes waiting calls ask for admission again, after a person changed a limit or a status through this process.
    pub fn wake(&self) {
        self.host().wake();
    }

    /// Has upstreams with an outage probed now, because a person wants it.
    pub fn probe(&self) {
        self.host().probe();
    }

    /// Returns the number of metered requests whose clients wait for an answer.
    pub fn in_progress(&self) -> usize {
        self.host().registry.len().0
    }

    async fn answer(&self, request: Request<Incoming>, wire: Wire) -> Response<AnswerBody> {
        let host = self.host();
        host.saw(Seen::Request);
        let facts = HeaderFacts {
            anthropic_version: request.headers().contains_key("anthropic-version"),
            x_api_key: request.headers().contains_key("x-api-key"),
        };
        let is_google =
            request.headers().contains_key("x-goog-api-key") || is_geminis(target::path(request.uri()));
        let shape = match facts {
            HeaderFacts { anthropic_version: true, .. } => Upstream::Anthropic,
            _ if is_google => Upstream::Gemini,
            _ => Upstream::OpenAi,
        };
        let connecting = self.intercept.as_ref().filter(|_| request.method() == Method::CONNECT);
        let speaks = Speaks::of(request.headers()).filter(|_| connecting.is_none());
        let answered = match connecting {
            Some(intercept) => {
                let connected = self.connect(intercept, &host, request).await;
                connected.map_err(|refusal| (refusal, Some(Upstream::OpenAi)))
            }
            None => self.pass(&host, request, (facts, shape), wire).await,
        };
        let mut response = match answered {
            Ok(response) => response,
            Err((refusal, upstream)) => {
                host.metrics.refused(refusal.code());
                refusal.response(upstream.unwrap_or(shape))
            }
        };
        if let Some(speaks) = speaks {
            speaks.stamp(&host, &mut response);
        }
        response
    }

    async fn pass(
        &self,
        host: &Arc<Host>,
        request: Request<Incoming>,
        (facts, shape): (HeaderFacts, Upstream),
        wire: Wire,
    ) -> Result<Response<AnswerBody>, (Refusal, Option<Upstream>)> {
        let (mut parts, body) = request.into_parts();
        let bare = |r: Refusal| (r, None);
        if parts.uri.scheme().is_some() {
            return Err(bare(Refusal::AbsoluteTarget));
        }
        if self.page.is_some() && page::takes(parts.uri.path()) {
            return self.page(host, &parts, body).await.map_err(bare);
        }
        if parts.method != Method::GET && parts.method != Method::HEAD {
            shown::may_change(&host.config.access, &parts.headers).map_err(|e| bare(e.into()))?;
        }
        if let Some(found) =
            api::routes::find(&parts.method, &parts.uri, host.config.access.only_run.is_some())
        {
            return Ok(self.api.answer(host, found, &parts, body, shape).await);
        }
        let _arriving = host.arrives();
        if host.is_draining() {
            return Err(bare(Refusal::Draining));
        }
        // The path of an MCP server may have a `/run/TOKEN` prefix.
        if let Some((front, name)) = self.mcp.as_ref().zip(front::name(target::path(&parts.uri))) {
            let caller = tool_caller(host, &parts).await.map_err(bare)?;
            let body = incoming::whole(body, host.config.max_body).await.map_err(bare)?;
            return Ok(front.answer(name, caller, &parts, body, wire).await);
        }
        if self.page == Some(Shows::Alone) {
            return Err(bare(unknown_path(&parts)));
        }
        target::move_key(&mut parts).map_err(|e| bare(e.into()))?;
        let known = who::caller(&host.config.access, &host.token_keys, &parts.uri, &parts.headers);
        let known = known.map_err(Refusal::from).and_then(|caller| {
            seat::serves(host, &caller.who)?;
            Ok(caller)
        });
        let mut caller = known.map_err(|refusal| {
            // Clients probe an address without their key; a call has a body.
            if parts.method == Method::POST {
                host.saw_refused(&refusal);
            }
            bare(refusal)
        })?;
        if parts.headers.get("upgrade").is_some_and(|u| u.as_bytes().eq_ignore_ascii_case(b"websocket")) {
            // Codex tries a WebSocket first, and falls back to HTTP at once on this refusal.
            return Err(bare(Refusal::NoWebSocket));
        }
        let named = match named::split(&caller.target) {
            None => None,
            Some((name, below)) => {
                let openai = |r| (r, Some(Upstream::OpenAi));
                let named =
                    host.config.providers.named(name).ok_or_else(|| openai(unknown_upstream(name)))?;
                let named = named.clone();
                caller.target = below;
                Some(named)
            }
        };
        // A named upstream has OpenAI's API, whatever headers the request has.
        let facts = if named.is_some() { HeaderFacts::default() } else { facts };
        self.upstream(host, Upwards { caller, named, facts }, parts, body, wire).await
    }

    async fn page(
        &self,
        host: &Host,
        parts: &http::request::Parts,
        body: Incoming,
    ) -> Result<Response<AnswerBody>, Refusal> {
        if !page::is_exchange(parts) {
            return page::answer(&host.config.access, parts);
        }
        let body = incoming::whole(body, host.config.max_body).await?;
        page::exchange(&host.config.access, parts, &body)
    }
}

/// Returns the attempt in whose name a client calls tools. It is that of a run token, or of the run that a header names:
/// calls in the run that all callers of a day share would be replayed to each other.
async fn tool_caller(host: &Host, parts: &http::request::Parts) -> Result<recorder::Caller, Refusal> {
    let caller = who::caller(&host.config.access, &host.token_keys, &parts.uri, &parts.headers)?;
    seat::serves(host, &caller.who)?;
    if caller.who == Who::Nobody {
        return Err(NotLetIn::NoRun.into());
    }
    let seat = seat::seat(host, &caller).await?;
    Ok(recorder::Caller { run: seat.run, attempt: seat.attempt, slot: seat.slot, scope: seat.scope })
}

/// Returns the refusal of an upstream name that is not configured. A run token in it is masked.
fn unknown_upstream(name: &str) -> Refusal {
    Refusal::UnknownUpstream { name: outlast_core::run::token::mask(name).chars().take(80).collect() }
}

/// Returns the refusal of a path that no route has. A run token in it is masked.
fn unknown_path(parts: &http::request::Parts) -> Refusal {
    let path: String = parts.uri.path().chars().take(120).collect();
    Refusal::UnknownPath { method: parts.method.to_string(), path: outlast_core::run::token::mask(&path) }
}

/// Longest time between two searches for idle runs.
const LOOK: Duration = Duration::from_secs(600);

impl Proxy {
    /// Completes idle runs again and again, without end: see [`Proxy::end_idle`].
    pub async fn keep_ending_idle(self, idle_ms: i64) {
        let quarter = Duration::from_millis(u64::try_from(idle_ms / 4).unwrap_or(0));
        loop {
            tokio::time::sleep(quarter.clamp(Duration::from_millis(100), LOOK)).await;
            if let Err(e) = self.end_idle(idle_ms).await {
                tracing::warn!(error = %e, "cannot end idle runs");
            }
        }
    }

    /// Completes running runs that were begun by a request's header and recorded nothing for `idle_ms` milliseconds.
    /// Returns how many.
    ///
    /// A run in which a request is recorded meanwhile goes on.
    pub async fn end_idle(&self, idle_ms: i64) -> Result<usize, store::Error> {
        let host = self.host();
        let store = host.store.clone();
        let looked = tokio::task::spawn_blocking(move || idle_since(&*store, store.now()?.plus_ms(-idle_ms)));
        let mut ended = 0;
        for run in looked.await.map_err(|_| store::Error::Closed)?? {
            let word = Word::Idle { upto: run.next_seq };
            if host.store.ask(Tell { run: run.no, word }, Durability::Synced).await? == Status::Completed {
                ended += 1;
                forget_run(&host, run.no);
                host.wake();
                tracing::info!(run = run.id.as_str(), "completed: it asked nothing for {} s", idle_ms / 1000);
            }
        }
        Ok(ended)
    }
}
