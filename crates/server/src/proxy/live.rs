//! The task that carries a live exchange to its settlement.
//!
//! The task belongs to no client's connection: the answer outlives the agent.

mod carry;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use outlast_core::{
    call::{
        Quiet,
        desk::{self, ForExchange},
        exchange::{Ending, Event, Failure, Frame, Silence},
        plan::Heard,
    },
    words::{Cause, Micros},
};
use tokio::{sync::watch, time::Instant};

pub use self::carry::patience;
use self::carry::{Answered, Carry, Settling, Tries};
use super::{call::Call, config::Config, host::Host, log::Frames, log::Live, or_never, upstream::SendFailed};
use crate::{
    dialect::{self, AnswerStream, Outcome, UpstreamError, sse, told_time::Says},
    wire::{encoding::Decoder, headers, incoming::append},
};

/// Time that an upstream has to end a body whose answer is complete. Later its connection is not used again.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// Length in bytes above which an event that is not complete is none that only keeps the connection open.
const LONGEST_PING: usize = 1 << 10;

/// First step of an exchange with an upstream.
pub enum Errand {
    /// Send the request. `cap`: tokens to which its output cap is lowered; `None`: the cap stays.
    Send { cap: Option<u64> },
    /// Close the call's entry without sending the request.
    Settle,
}

/// Carries an exchange from its first step `errand` to its settlement. Returns when its entry is closed.
pub async fn carry(host: Arc<Host>, live: Arc<Live>, call: Arc<Call>, errand: Errand) {
    let cap = match errand {
        Errand::Send { cap } => cap,
        Errand::Settle => None,
    };
    let mut task = Carry {
        host,
        live,
        call,
        cap,
        answer: Answered::default(),
        tries: Tries::default(),
        settling: Settling::default(),
    };
    if let Errand::Send { .. } = errand {
        task.upstream().await;
    }
    while task.goes_on().await {}
}

impl Carry {
    /// Carries out the next deed for the exchange. Returns false when the exchange is over.
    async fn goes_on(&mut self) -> bool {
        tokio::select! {
            () = self.live.inbox.filled() => {}
            event = self.settling.next() => {
                self.settles(event);
                return true;
            }
        }
        match self.live.inbox.pop() {
            Some(ForExchange::Settle { ending, error }) => self.settle(ending, error),
            Some(ForExchange::SettleAgain { ending, error }) => self.settling.rests(ending, error),
            Some(ForExchange::DropAnswer) => self.drop_answer(),
            Some(ForExchange::Rest { tries, pause_ms }) => self.rest(tries, pause_ms).await,
            Some(ForExchange::RestOn { pause_ms }) => self.rest_on(pause_ms).await,
            Some(ForExchange::Outage(cause)) => self.await_provider(cause).await,
            // What is refused for its own sake is answered.
            Some(ForExchange::FailsAlone) => self.answer.cause = None,
            Some(ForExchange::AskAgain { tries }) => self.ask_again(tries).await,
            Some(ForExchange::SendAgain) => {
                self.begin_again();
                self.upstream().await;
            }
            Some(ForExchange::Over) => {
                let never_left = self.settling.ending == Some(Ending::Void);
                self.host.plans.over(&self.host, self.live.key(), never_left);
                self.host.memories.call_ends(&self.call.seat);
                return false;
            }
            // The body was dropped when `upstream` returned.
            Some(ForExchange::Abort) | None => {}
        }
        true
    }

    fn on(&self, event: Event) {
        self.host.registry.exchange(self.live.key(), event);
    }

    /// Sends the request, and receives its answer.
    async fn upstream(&mut self) {
        let limit = self.host.config.upstream_concurrency;
        // Held until the answer has ended. A waiting call keeps its reservation, and counts as in flight for a drain.
        let _inside = self.host.gates.enter(self.call.upstream_name(), limit).await;
        if limit.is_some() && self.host.store.is_shared() {
            // Others take the share of a process that they have declared dead.
            self.host.node.opening().await;
        }
        self.leaves();
        let (registry, key) = (self.host.registry.clone(), self.live.key());
        let connected = move || registry.on(desk::Event::Connected(key));
        let send = self.call.send(&self.host.config, &self.host.pool, self.cap, connected);
        let after_suspend = self.host.config.silence_after_suspend;
        let mut suspends = self.host.suspends();
        let mut given_up = Instant::now() + self.host.config.first_byte_timeout;
        let mut why = Silence::FirstByte;
        let mut send = std::pin::pin!(send);
        let response = loop {
            tokio::select! {
                sent = &mut send => break match sent {
                    Ok(response) => response,
                    Err(SendFailed::Unsendable(text)) => {
                        tracing::warn!(run = %self.call.seat.id, error = %text, "cannot be sent");
                        return self.on(Event::UpstreamError(Failure::BeforeSend));
                    }
                    Err(SendFailed::Unreachable(text, cause)) => {
                        self.answer.cause = self.waited_for(Some(cause));
                        match self.answer.cause {
                            // The run says once that it waits: probes of a long outage would fill the terminal.
                            Some(_) => tracing::info!(run = %self.call.seat.id, error = %text, "upstream unreachable"),
                            None => tracing::warn!(run = %self.call.seat.id, error = %text, "upstream unreachable"),
                        }
                        return self.on(Event::Unreachable(self.told(None)));
                    }
                    Err(SendFailed::Lost(text)) => {
                        tracing::warn!(run = %self.call.seat.id, error = %text, "upstream lost");
                        self.answer.cause = self.waited_for(Some(Cause::Lost));
                        return self.on(Event::UpstreamError(Failure::AfterSend));
                    }
                },
                () = tokio::time::sleep_until(given_up) => return self.on(Event::Timeout(why)),
                _ = suspends.changed() => {
                    given_up = given_up.min(Instant::now() + after_suspend);
                    why = Silence::Suspend;
                }
            }
        };
        self.receive(response, suspends).await;
    }

    /// Reads an answer to its end. `suspends`: counts the machine's suspends.
    async fn receive(&mut self, response: Response<Incoming>, mut suspends: watch::Receiver<u64>) {
        self.answer.head_at = Some(Instant::now());
        self.answer.status = Some(response.status().as_u16());
        self.learn(response.status(), response.headers());
        let (head, mut body) = response.into_parts();
        let encoding = headers::text(&head.headers, "content-encoding");
        // In an encoding that is not known the answer passes as it came: its client may know it.
        let decoder = Decoder::of(encoding, self.host.config.max_answer);
        self.answer.unreadable = decoder.as_ref().err().map(ToString::to_string);
        let mut decoder = decoder.ok();
        self.answer.request_id = ["x-request-id", "request-id"]
            .iter()
            .find_map(|n| headers::text(&head.headers, n))
            .map(|s| s.chars().take(200).collect());
        let streamed = headers::text(&head.headers, header::CONTENT_TYPE.as_str()).is_some_and(|t| {
            t.starts_with("text/event-stream")
                || (self.call.request.array_stream && t.starts_with("application/json"))
        }) && head.status.is_success()
            && decoder.is_some();
        {
            let mut log = self.live.log.lock();
            log.status = head.status;
            log.headers = headers::client(&head.headers, decoder.is_some());
            if let Some(cap) = self.cap {
                // Stored with the answer, and so replayed.
                log.headers.insert("x-outlast-clamped", cap.into());
            }
            log.streamed = streamed;
        }
        self.on(Event::Head { status: head.status.as_u16(), streamed });
        let mut reader = streamed.then(|| {
            (self.call.dialect.read_stream)(&self.call.request).noting_cost(self.call.to.cost_field())
        });
        let mut whole = Vec::new();
        let mut taken = 0;
        let began = Instant::now();
        let Config { idle_timeout, urged_idle_timeout, .. } = self.host.config;
        let after_suspend = self.host.config.silence_after_suspend;
        let mut quiet = Quiet::new(idle_timeout, urged_idle_timeout, Duration::ZERO);
        loop {
            let mut asleep_until: Option<Instant> = None;
            let next = loop {
                tokio::select! {
                    next = body.frame() => break next,
                    () = tokio::time::sleep_until(began + quiet.until()) => {
                        return self.on(Event::Timeout(Silence::Idle));
                    }
                    () = or_never(asleep_until.map(tokio::time::sleep_until)) => {
                        return self.on(Event::Timeout(Silence::Suspend));
                    }
                    _ = suspends.changed() => asleep_until = Some(Instant::now() + after_suspend),
                    () = self.live.urged.notified() => quiet.urge(),
                }
            };
            let chunk = match next {
                None => break,
                Some(Err(_)) => return self.on(Event::UpstreamError(Failure::AfterSend)),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => data,
                    Err(_trailers) => continue,
                },
            };
            let decoded = match &mut decoder {
                Some(decoder) => decoder.push(chunk),
                None => Ok(chunk),
            };
            let chunk = match decoded {
                Ok(chunk) => chunk,
                Err(e) => {
                    tracing::warn!(run = %self.call.seat.id, error = %e, "an answer cannot be decoded");
                    self.answer.outcome.error =
                        Some(UpstreamError { message: e.to_string(), ..Default::default() });
                    return self.on(Event::UpstreamError(Failure::AfterSend));
                }
            };
            taken += chunk.len();
            if taken > self.host.config.max_answer {
                let most = self.host.config.max_answer;
                tracing::warn!(run = %self.call.seat.id, most, "an answer is larger than what is taken");
                return self.on(Event::UpstreamError(Failure::AfterSend));
            }
            let is_blank = chunk.iter().all(u8::is_ascii_whitespace);
            let gets_on = match &mut reader {
                Some(reader) => {
                    let frames = reader.push(chunk);
                    let gets_on = frames.iter().filter_map(|f| f.kind).any(Frame::gets_on);
                    self.frames(reader, frames);
                    if self.is_settling() {
                        // Some upstreams keep a body open after the last event: the client does not wait for its end.
                        return read_on(body);
                    }
                    gets_on || !is_blank && reader.pending() > LONGEST_PING
                }
                None => {
                    append(&mut whole, &chunk);
                    !is_blank
                }
            };
            quiet.came(gets_on, began.elapsed());
        }
        match reader {
            Some(mut reader) => {
                let last = reader.finish();
                self.frames(&mut reader, last.into_iter().collect());
                self.on(Event::StreamEnd);
            }
            None => self.whole(whole, head.status),
        }
    }

    fn whole(&mut self, body: Vec<u8>, status: StatusCode) {
        let told = dialect::lenient::parse_json(&body).unwrap_or_default();
        let cost = self.call.to.cost_field().and_then(|field| field.read(&told));
        self.answer.outcome = Outcome { cost, ..(self.call.dialect.read)(&told) };
        if let Some(message) = self.answer.unreadable.take() {
            self.answer.outcome.error = Some(UpstreamError { message, ..Default::default() });
        }
        // Some upstreams answer 200 with an error in the body.
        let is_object = told.is_object() || opens_an_object(&body);
        let readable = !status.is_success() || (is_object && self.answer.outcome.error.is_none());
        if !status.is_success() || self.answer.outcome.error.is_some() {
            self.answer.limited = self.usage_limit(&body);
        }
        let (upstream, is_own_key) = (self.call.dialect.upstream, self.call.is_own_key());
        self.answer.cause = self.waited_for(dialect::outage(upstream, status.as_u16(), &body, is_own_key));
        let len = body.len() as u64;
        let body = if status.is_success() { body } else { self.masked(body.into()).into() };
        self.live.log.lock().frames = Frames::whole(body);
        if status.is_success() {
            return self.on(Event::BodyEnd { len, readable });
        }
        let headers = self.live.log.lock().headers.clone();
        let told = self.told(Some(&headers));
        self.on(Event::Refused { len, told });
    }

    /// Returns `cause` if this proxy holds calls during outages; else `None`.
    fn waited_for(&self, cause: Option<Cause>) -> Option<Cause> {
        cause.filter(|_| self.host.config.outage_pause.is_some())
    }

    /// Returns until when the answer with this `error` says that all calls are refused. `None` also when the store's clock
    /// cannot be read.
    fn usage_limit(&self, error: &[u8]) -> Option<Micros> {
        let now = self.host.store.now().ok()?;
        dialect::usage_limit(self.answer.status?, &self.live.log.lock().headers, error, now)
    }

    fn frames(&mut self, reader: &mut AnswerStream, frames: Vec<dialect::Frame>) {
        for frame in frames {
            // A frame without its end would run together with the error frame after it.
            let Some(kind) = frame.kind else { continue };
            if self.is_settling() {
                // The answer is on its way to the store: frames after its end would be seen once and never
                // replayed.
                break;
            }
            let len = frame.bytes.len() as u64;
            let bytes = match kind {
                Frame::Swallowed => Bytes::new(),
                Frame::Error => {
                    let data = sse::Event::read(&frame.bytes).data;
                    self.answer.limited = self.usage_limit(data.as_deref().unwrap_or(&frame.bytes));
                    self.masked(frame.bytes)
                }
                _ => frame.bytes,
            };
            self.live.log.lock().frames.push(&bytes);
            // Before the event: the settlement that may follow needs the usage.
            if matches!(kind, Frame::Terminal | Frame::Error) {
                self.answer.outcome = reader.outcome().clone();
            }
            self.on(Event::Frame { frame: kind, len });
        }
        self.answer.outcome = reader.outcome().clone();
    }

    /// Returns an upstream's error with the configured key masked.
    fn masked(&self, error: Bytes) -> Bytes {
        match &self.call.to.provider(&self.host.config.providers).key {
            Some(key) => key.masked(error),
            None => error,
        }
    }

    /// Passes on what the response's headers report: rate limits to the desk, windows of the plan to the
    /// login's plan.
    fn learn(&self, status: StatusCode, headers: &HeaderMap) {
        // The clock of this process: only time spans count, so the store need not be asked.
        let now = self.host.clock.now();
        let says = Says { headers, now };
        let levels = dialect::rate_limits(status.as_u16(), &says);
        let windows = dialect::plan_windows(self.call.dialect.upstream, &says);
        let heard = Heard { windows, is_answer: status.is_success() };
        self.host.plans.told(&self.host, &self.call, self.live.key(), heard);
        self.host.registry.on(desk::Event::Told(self.live.key(), levels));
    }

    /// Returns whether the answer is over and a deed for it waits in the inbox.
    fn is_settling(&self) -> bool {
        !self.live.inbox.is_empty()
    }
}

/// Reads the rest of a body in the background, so that its connection can be used again.
fn read_on(mut body: Incoming) {
    let mut rest = Box::pin(async move { while let Some(Ok(_)) = body.frame().await {} });
    // The end mostly came with the last event.
    if (&mut rest).now_or_never().is_none() {
        tokio::spawn(tokio::time::timeout(LAST_BYTES, rest));
    }
}

/// Returns whether a body is a JSON object, however deep. Any other body cannot be read as an answer, and is not replayed.
fn opens_an_object(body: &[u8]) -> bool {
    let whole = serde_json::from_slice::<&serde_json::value::RawValue>(body);
    whole.is_ok_and(|raw| raw.get().trim_start().starts_with('{'))
}
