//! Requests to upstreams: metered calls, which the journal has, and free ones, which pass unrecorded.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use outlast_core::{call::Refused, engine};

use super::{Proxy, Seen, unknown_path};
use crate::{
    dialect::{HeaderFacts, Route, Upstream, route},
    proxy::{
        busy_waiting,
        call::{Arrived, Call, Context, credential},
        drive,
        host::Host,
        kept,
        named::{self, Named, To},
        seat::{self, Seat},
    },
    wire::{
        body::AnswerBody,
        credentials::Credential,
        headers, incoming,
        refuse::Refusal,
        socket::Wire,
        who::{self, Caller},
    },
};

/// Request for an upstream, with the facts that decide which upstream gets it.
pub(super) struct Upwards {
    pub caller: Caller,
    pub named: Option<Arc<Named>>,
    pub facts: HeaderFacts,
}

impl Proxy {
    /// Sends a request to its upstream as its route says, or refuses it.
    pub(super) async fn upstream(
        &self,
        host: &Arc<Host>,
        upwards: Upwards,
        parts: http::request::Parts,
        body: Incoming,
        wire: Wire,
    ) -> Result<Response<AnswerBody>, (Refusal, Option<Upstream>)> {
        let Upwards { caller, named, facts } = upwards;
        let bare = |r: Refusal| (r, None);
        let seen = |r: Refusal| {
            host.saw_refused(&r);
            r
        };
        let to = |upstream| match &named {
            Some(named) => To::Named(named.clone()),
            None => To::Own(upstream),
        };
        let target = caller.target.clone();
        let routed = route(parts.method.as_str(), &target, facts);
        if let Some(named) = &named
            && routed.upstream().is_some_and(|upstream| upstream != Upstream::OpenAi)
        {
            let reason = format!("{} is asked in the words of OpenAI's API only", named.name);
            return Err((seen(Refusal::NotMetered { reason }), Some(Upstream::OpenAi)));
        }
        match routed {
            Route::Metered(dialect) => {
                let to = to(dialect.upstream);
                let shape = to.shape();
                let shaped = |r: Refusal| (seen(r), Some(shape));
                let raw = incoming::whole(body, host.config.max_body).await.map_err(shaped)?;
                let arrived = Arrived { caller, dialect, to, headers: parts.headers, raw };
                metered(host, arrived, wire).await.map_err(shaped)
            }
            Route::Free { upstream } | Route::Kept { upstream, .. } => {
                let shaped = |r: Refusal| (r, Some(upstream));
                if let Route::Kept { id, .. } = routed {
                    let seat = seat::seat(host, &caller).await.map_err(shaped)?;
                    kept::check(host, seat.run, vec![id.to_owned()]).await.map_err(shaped)?;
                }
                let raw = incoming::whole(body, host.config.max_body).await.map_err(shaped)?;
                free(host, caller, to(upstream), parts.method, parts.headers, raw).await.map_err(shaped)
            }
            Route::Refused { upstream, reason } => {
                Err((seen(Refusal::NotMetered { reason: reason.to_string() }), Some(upstream)))
            }
            // Many a client looks for what is there, and sends telemetry: that is no call.
            Route::Unknown => Err(bare(unknown_path(&parts))),
            Route::Bad(reason) => Err(bare(Refusal::BadTarget(reason))),
        }
    }
}

/// Code of a request that is larger than what is taken. Another life of the agent asks for the same.
pub const TOO_LARGE: &str = "body_too_large";

/// Makes a metered call: it is recorded before it goes out, or answered from the journal.
async fn metered(
    host: &Arc<Host>,
    mut arrived: Arrived,
    wire: Wire,
) -> Result<Response<AnswerBody>, Refusal> {
    arrived.to = named::route(&host.config, &arrived);
    if arrived.caller.credential == Credential::Ours && arrived.to.lacks_key(&host.config.providers) {
        return Err(no_key(&arrived.to));
    }
    host.opening().await?;
    let (response, seat) = ask(host, arrived.clone(), wire.clone()).await?;
    if !is_stale(&response, &seat) {
        return Ok(response);
    }
    // Nothing of it was admitted. Its clients do not repeat such a refusal, so the run is entered again here.
    let who = arrived.caller.who.clone();
    seat::forget(host, &seat, &who);
    let (response, seat) = match ask(host, arrived, wire).await {
        // The run itself is over: there is nothing to enter, and the refusal of its attempt's admission stands.
        Err(Refusal::Call { refused, .. })
            if matches!(*refused, Refused::NotAllowed(engine::Error::RunEnded { .. })) =>
        {
            return Ok(response);
        }
        asked => asked?,
    };
    if is_stale(&response, &seat) {
        seat::forget(host, &seat, &who);
    }
    Ok(response)
}

/// Returns whether the seat of a request may be older than what another process did with its run: the attempt was ended,
/// the run stopped, or removed.
fn is_stale(response: &Response<AnswerBody>, seat: &Seat) -> bool {
    response.status() == StatusCode::FORBIDDEN
        && response.headers().contains_key("x-outlast-code")
        && seat.undriven
}

/// Drives a metered call in the seat of its caller. Returns the beginning of its answer, with the seat.
async fn ask(
    host: &Arc<Host>,
    arrived: Arrived,
    wire: Wire,
) -> Result<(Response<AnswerBody>, Seat), Refusal> {
    let mut seat = seat::seat(host, &arrived.caller).await?;
    if let Some(seq) = arrived.caller.within {
        seat = seat::within(host, seat, seq)?;
    }
    if let Some(id) = who::session(&arrived.headers) {
        let agent = headers::text(&arrived.headers, "x-outlast-agent").map(str::to_owned);
        host.saw(Seen::Session { run: seat.run, attempt: seat.attempt, id, agent });
    }
    let context = Context { config: &host.config, memories: &host.memories, nonce: &|| host.nonce() };
    let mut call = Call::read(&context, seat.clone(), arrived)?;
    if !call.request.names.is_empty() {
        kept::check(host, call.seat.run, call.request.names.clone()).await?;
    }
    if let Some(dearest) = call.priced.stands_in() {
        host.tell_stand_in(&call.request.model, dearest);
    }
    busy_waiting::enter(host, &mut call).await?;
    let (response, gone) = drive::start(host.clone(), call, wire);
    let response =
        response.await.map_err(|_| Refusal::Internal("the call's driver ended without an answer".into()))?;
    gone.disarm();
    Ok((response, seat))
}

/// Passes a request that costs nothing through, unrecorded.
async fn free(
    host: &Host,
    caller: Caller,
    to: To,
    method: Method,
    headers: http::HeaderMap,
    raw: Bytes,
) -> Result<Response<AnswerBody>, Refusal> {
    if caller.credential == Credential::Ours && to.lacks_key(&host.config.providers) {
        return Err(no_key(&to));
    }
    let mut out = headers::upstream(&headers, false);
    credential(&host.config, &to, &caller.credential, &headers, &mut out)
        .map_err(|why| Refusal::UnusableKey { upstream: to.name().to_owned(), why })?;
    let url = to.url(&host.config.providers, &caller.target);
    let sent = tokio::time::timeout(host.config.first_byte_timeout, host.pool.send(method, &url, out, raw));
    let response = match sent.await {
        Ok(Ok(response)) => response,
        Ok(Err(e)) => return Err(Refusal::Unreachable(e.to_string())),
        Err(_) => return Err(Refusal::NoAnswer),
    };
    let (head, body) = response.into_parts();
    let whole = Limited::new(body, host.config.max_answer).collect();
    let body = match tokio::time::timeout(host.config.idle_timeout, whole).await {
        Ok(Ok(body)) => body,
        Ok(Err(e)) => return Err(Refusal::BrokeOff(format!("broke off: {e}"))),
        Err(_) => return Err(Refusal::BrokeOff("did not end in time".into())),
    };
    let mut body = body.to_bytes();
    if let Some(key) = &to.provider(&host.config.providers).key
        && !head.status.is_success()
    {
        body = key.masked(body);
    }
    let mut response = Response::new(AnswerBody::plain(body));
    *response.status_mut() = head.status;
    *response.headers_mut() = headers::client(&head.headers, false);
    Ok(response)
}

fn no_key(to: &To) -> Refusal {
    let (upstream, needs) = match to {
        To::Own(upstream) => {
            (upstream.row().title.into(), format!("{} set", upstream.row().key_variables[0]))
        }
        To::Named(named) => (named.name.to_string(), named.wants_key.clone().unwrap_or("its key".into())),
    };
    Refusal::NoProviderKey { upstream, needs }
}
