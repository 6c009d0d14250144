//! A live exchange: the bytes of an answer in flight, and the task that carries it to its settlement.
//!
//! The task belongs to nobody's connection: the answer outlives the agent.

mod again;
mod settling;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use outlast_core::{
    call::exchange::{Action, Charge, Ending, Event, Exchange, Failure, Frame, Progress, Silence},
    words::id::{InstanceNo, Micros, Seq},
};
use tokio::{sync::watch, time::Instant};

use self::{
    again::Rest,
    settling::{Settling, Stuck},
};
pub use self::{again::leaves_it_to_us, settling::SETTLE_AGAIN};
use super::{call::Call, host::Host, rates::Turn, upstream::SendFailed};
use crate::{
    dialect::{self, AnswerStream, FrameKind, Outcome, says::Says},
    wire::{encoding::Decoder, headers},
};

/// How long an upstream may take to end a body whose answer is over, for its connection to be used again.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// What connections read of an exchange.
pub struct Live {
    pub seq: Seq,
    pub instance: InstanceNo,
    log: Mutex<Log>,
    progress: watch::Sender<Progress>,
}

/// The answer so far.
#[derive(Default)]
pub struct Log {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// As the machine counts them; what is not for the client is empty.
    pub frames: Vec<Bytes>,
    pub streamed: bool,
}

impl Live {
    pub fn new(seq: Seq, instance: InstanceNo) -> Arc<Live> {
        Arc::new(Live { seq, instance, log: Mutex::default(), progress: watch::Sender::default() })
    }

    pub fn subscribe(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Carries the exchange of `live` to its end.
pub async fn carry(host: Arc<Host>, live: Arc<Live>, call: Arc<Call>, cap: Option<u64>, turn: Option<Turn>) {
    let mut task = Carry {
        machine: Exchange::patient(again::patience(&host, &call)),
        host,
        live,
        call,
        outcome: Outcome::default(),
        upstream_request_id: None,
        settling: None,
        active_ms: 0,
        again_at: None,
        slow_at: None,
        stuck: None,
        limited: None,
        began_at: None,
        sent_at: Instant::now(),
        head_at: None,
        settle_began: Instant::now(),
        ending: None,
        rest: None,
        asking: None,
        again: false,
        retries: 0,
        turn,
    };
    task.upstream(cap).await;
    while task.goes_again().await {
        task.upstream(cap).await;
    }
    task.settle_down().await;
}

struct Carry {
    machine: Exchange,
    host: Arc<Host>,
    live: Arc<Live>,
    call: Arc<Call>,
    outcome: Outcome,
    upstream_request_id: Option<String>,
    settling: Option<Settling>,
    /// Active time that this settlement posts, over all its tries.
    active_ms: i64,
    again_at: Option<(Instant, Ending, Option<&'static str>)>,
    slow_at: Option<Instant>,
    /// It waits to be recorded.
    stuck: Option<Stuck>,
    /// Until when the upstream refuses everything, if it said so.
    limited: Option<Micros>,
    /// When its first try was sent.
    began_at: Option<Instant>,
    /// When its last try was.
    sent_at: Instant,
    head_at: Option<Instant>,
    settle_began: Instant,
    /// How the entry closes.
    ending: Option<Ending>,
    /// The pause that the machine wants.
    rest: Option<Rest>,
    /// Tries that are to be on disk before the next one.
    asking: Option<Vec<Option<u16>>>,
    /// The request is to be sent again.
    again: bool,
    /// How often it was sent again.
    retries: u32,
    /// What it counts as in its upstream's minute.
    turn: Option<Turn>,
}

impl Carry {
    /// Sends the request and reads the answer to its end.
    async fn upstream(&mut self, cap: Option<u64>) {
        let limit = self.host.config.upstream_concurrency;
        // Until the answer has ended. It holds its reservation meanwhile, and is in flight for a drain.
        let _inside = self.host.gates.enter(self.call.upstream_name(), limit).await;
        self.leaves();
        let send = self.call.send(&self.host, cap);
        let first_byte = self.host.config.first_byte_timeout;
        let after_suspend = self.host.config.silence_after_suspend;
        let mut suspends = self.host.suspends();
        let mut given_up = Instant::now() + first_byte;
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
                    Err(SendFailed::Unreachable(text)) => {
                        tracing::warn!(run = %self.call.seat.id, error = %text, "upstream unreachable");
                        return self.on(Event::Unreachable(self.told(None)));
                    }
                    Err(SendFailed::Lost(text)) => {
                        tracing::warn!(run = %self.call.seat.id, error = %text, "upstream lost");
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
        self.head_at = Some(Instant::now());
        self.learn(response.status(), response.headers());
        let (head, mut body) = response.into_parts();
        let encoding = headers::text(&head.headers, "content-encoding");
        let decoder = Decoder::of(encoding);
        let decoded = decoder.as_ref().is_some_and(Decoder::decodes);
        let mut decoder = decoder.unwrap_or(Decoder::Plain);
        self.upstream_request_id = ["x-request-id", "request-id"]
            .iter()
            .find_map(|n| headers::text(&head.headers, n))
            .map(|s| s.chars().take(200).collect());
        let streamed = headers::text(&head.headers, header::CONTENT_TYPE.as_str()).is_some_and(|t| {
            t.starts_with("text/event-stream")
                || (self.call.request.array_stream && t.starts_with("application/json"))
        }) && head.status.is_success();
        {
            let mut log = self.live.log();
            log.status = head.status;
            log.headers = headers::client(&head.headers, decoded);
            if let Some(cap) = cap {
                // With the answer it is stored, and so replayed.
                log.headers.insert("x-outlast-clamped", cap.into());
            }
            log.streamed = streamed;
        }
        self.on(Event::Head { status: head.status.as_u16(), streamed });
        let mut reader = streamed.then(|| {
            self.call.dialect.read_stream(&self.call.request).noting_cost(self.call.to.cost_field())
        });
        let mut whole = BytesMut::new();
        let idle = self.host.config.idle_timeout;
        loop {
            let mut given_up = Instant::now() + idle;
            let mut why = Silence::Idle;
            let next = loop {
                tokio::select! {
                    next = body.frame() => break next,
                    () = tokio::time::sleep_until(given_up) => return self.on(Event::Timeout(why)),
                    _ = suspends.changed() => {
                        given_up = given_up.min(Instant::now() + after_suspend);
                        why = Silence::Suspend;
                    }
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
            let Ok(chunk) = decoder.push(chunk) else {
                return self.on(Event::UpstreamError(Failure::AfterSend));
            };
            match &mut reader {
                Some(reader) => {
                    let frames = reader.push(chunk);
                    self.frames(reader, frames);
                    if self.settling.is_some() {
                        // Some upstreams keep a body open behind the last event: nobody waits for that.
                        return read_on(body);
                    }
                }
                None if whole.len() + chunk.len() > self.host.config.max_answer => {
                    return self.on(Event::UpstreamError(Failure::AfterSend));
                }
                None => whole.extend_from_slice(&chunk),
            }
        }
        match reader {
            Some(mut reader) => {
                let last = reader.finish();
                self.frames(&mut reader, last.into_iter().collect());
                self.on(Event::StreamEnd);
            }
            None => self.whole(whole.freeze(), head.status),
        }
    }

    fn whole(&mut self, body: Bytes, status: StatusCode) {
        self.outcome = self.call.dialect.read_json(&body);
        self.outcome.cost = self.call.to.cost_field().and_then(|field| field.read(&body));
        // Some upstreams say 200 of what failed.
        let readable = !status.is_success() || (is_json_object(&body) && self.outcome.error.is_none());
        if status == StatusCode::TOO_MANY_REQUESTS {
            self.limited = self.usage_limit(&body);
        }
        let len = body.len() as u64;
        let body = if status.is_success() { body } else { self.masked(body) };
        self.live.log().frames.push(body);
        if status.is_success() {
            return self.on(Event::BodyEnd { len, readable });
        }
        let headers = self.live.log().headers.clone();
        let told = self.told(Some(&headers));
        self.on(Event::Refused { len, told });
    }

    /// Until when a 429 says that everything is refused. A clock that cannot be read tells nothing.
    fn usage_limit(&self, body: &[u8]) -> Option<Micros> {
        let now = self.host.store.now().ok()?;
        let upstream = self.call.dialect.upstream();
        dialect::usage_limit(upstream, 429, &self.live.log().headers, body, now)
    }

    fn frames(&mut self, reader: &mut AnswerStream, frames: Vec<dialect::Frame>) {
        for frame in frames {
            let kind = match frame.kind {
                FrameKind::Data => Frame::Data,
                FrameKind::Ping => Frame::Ping,
                FrameKind::Swallowed => Frame::Swallowed,
                FrameKind::Stop => Frame::Stop,
                FrameKind::Terminal => Frame::Terminal,
                FrameKind::Error => Frame::Error,
                // A frame without its end would run together with the error frame behind it.
                FrameKind::Partial => continue,
            };
            if self.settling.is_some() {
                // The answer is on its way to the store: what the upstream says behind its end would be
                // seen once and never replayed.
                break;
            }
            let len = frame.bytes.len() as u64;
            let bytes = match kind {
                Frame::Swallowed => Bytes::new(),
                Frame::Error => self.masked(frame.bytes),
                _ => frame.bytes,
            };
            self.live.log().frames.push(bytes);
            // Before the event: the settlement it may bring needs the usage.
            if matches!(kind, Frame::Terminal | Frame::Error) {
                self.outcome = reader.outcome().clone();
            }
            self.on(Event::Frame { frame: kind, len });
        }
        self.outcome = reader.outcome().clone();
    }

    /// An upstream's error without our key.
    fn masked(&self, error: Bytes) -> Bytes {
        match &self.call.to.provider(&self.host.config.providers).key {
            Some(key) => key.masked(error),
            None => error,
        }
    }

    fn on(&mut self, event: Event) {
        let actions = self.machine.on(event);
        // Before anybody is told: who heard that an answer is not recorded finds new calls refused.
        match self.stuck {
            None if self.machine.is_stuck() => self.keep_what_may_stay(),
            Some(_) if !self.machine.is_stuck() => self.is_recorded(),
            _ => {}
        }
        for action in actions {
            match action {
                Action::Settle { ending, error } => {
                    self.slow_at = Some(Instant::now() + self.host.config.settle_wait);
                    self.settling = Some(self.settle(ending, error));
                }
                Action::SettleAgain { ending, error } => {
                    self.again_at = Some((Instant::now() + SETTLE_AGAIN, ending, error));
                }
                Action::Tell(progress) => {
                    self.live.progress.send_replace(progress);
                }
                Action::Rest { tries, pause_ms } => self.rest = Some(Rest { tries, pause_ms }),
                Action::AskAgain { tries } => self.asking = Some(tries),
                Action::SendAgain => self.begins_again(),
                // The body is dropped when `upstream` returns.
                Action::Abort => {}
            }
        }
    }

    /// What the provider says of its limits.
    fn learn(&self, status: StatusCode, headers: &HeaderMap) {
        // This process's own: no store is asked for it, and only spans count.
        let now = self.host.clock.now();
        let levels = dialect::rate_limits(status.as_u16(), &Says { headers, now });
        self.host.rates.learn(&self.call.wants(&self.host), levels);
    }

    /// Its minute has what it came to. Without usage its bound stands; a refusal is no token.
    fn gives_its_turn(&mut self) {
        let Some(mut turn) = self.turn.take() else { return };
        match (self.ending, self.outcome.usage) {
            (Some(Ending::Void), _) => turn.never_arrived(),
            (Some(Ending::Failed(Charge::Nothing)), _) => turn.used(0),
            (_, Some(usage)) => turn.used(usage.total()),
            _ => {}
        }
    }
}

/// Reads what is left of a body, so that its connection can be used again.
fn read_on(mut body: Incoming) {
    let mut rest = Box::pin(async move { while let Some(Ok(_)) = body.frame().await {} });
    // Mostly the end came with the last event.
    if (&mut rest).now_or_never().is_none() {
        tokio::spawn(tokio::time::timeout(LAST_BYTES, rest));
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Whether a body can be an answer at all: what is not JSON cannot be read, and is not replayed.
fn is_json_object(body: &[u8]) -> bool {
    serde_json::from_slice::<&serde_json::value::RawValue>(body)
        .is_ok_and(|raw| raw.get().trim_start().starts_with('{'))
}
