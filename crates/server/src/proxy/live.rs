//! A live exchange: the bytes of an answer in flight, and the task that carries it to its settlement.
//!
//! The task belongs to nobody's connection: the answer outlives the agent.

mod again;

use std::{
    pin::Pin,
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
    engine::{keep::Keep, settle::Settle},
    id::{InstanceNo, Micros, Seq},
    journal::Role,
    op::{Durability, Settled},
    payload::Payload,
    run::Record,
    store::{Ask as _, Error},
};
use tokio::{sync::watch, time::Instant};

use self::again::Rest;
pub use self::again::leaves_it_to_us;
use super::{
    call::Call,
    encoding::Decoder,
    headers,
    host::{Host, Seen},
    metrics::Counted,
    rates::Turn,
    record::Answer,
    upstream::SendFailed,
};
use crate::dialect::{self, AnswerStream, FrameKind, Outcome, says::Says};

/// The pause before a settlement that failed is tried again.
pub const SETTLE_AGAIN: Duration = Duration::from_millis(500);

/// How long an upstream may take to end a body whose answer is over, for its connection to be used again.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// A settlement on its way to the store, behind the parts of a long answer.
type Settling = Pin<Box<dyn Future<Output = Result<Settled, Error>> + Send>>;

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

/// An answer that waits to be recorded.
#[derive(Clone, Copy)]
struct Stuck {
    /// What it holds in memory; `None`: only its usage is left.
    kept: Option<u64>,
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

    /// The store cannot take the answer: memory is not to fill up with such. A settlement that is already
    /// with the store keeps its own copy; the next try is without the answer.
    fn keep_what_may_stay(&mut self) {
        let kept = self.host.unrecorded.add(self.machine.bytes());
        self.stuck = Some(Stuck { kept });
        if kept.is_none() {
            self.live.log().frames.clear();
            tracing::warn!(
                run = %self.call.seat.id, seq = %self.live.seq, bytes = self.machine.bytes(),
                "too much waits to be recorded: of this answer only the usage is kept, and it will not be replayed"
            );
        }
    }

    fn is_recorded(&mut self) {
        if let Some(stuck) = self.stuck.take() {
            self.host.unrecorded.recorded(stuck.kept);
        }
    }

    fn settle(&mut self, ending: Ending, error: Option<&'static str>) -> Settling {
        self.settle_began = Instant::now();
        self.ending = Some(ending);
        self.active_ms += self.host.active_since(&self.call.seat);
        let call = &self.call;
        let (status, answer) = {
            let log = self.live.log();
            let dropped = self.stuck.is_some_and(|s| s.kept.is_none());
            let kept = ending == Ending::Done && call.seat.record != Record::Digests && !dropped;
            let answer = kept.then(|| {
                let frames = log.frames.iter().filter(|f| !f.is_empty()).cloned().collect();
                Answer { status: log.status, headers: log.headers.clone(), frames }.to_bytes()
            });
            (self.machine.status(), answer)
        };
        let detail = self.outcome.error.as_ref().map(|e| {
            let text = call.mask_secrets(&self.host, &e.message);
            text.chars().take(500).collect::<String>()
        });
        let settle = Settle {
            run: call.seat.run,
            seq: self.live.seq,
            attempt: call.seat.attempt,
            instance: self.live.instance,
            close: ending.close(call.priced.bill(&self.outcome)),
            active_ms: self.active_ms,
            http_status: status,
            upstream_request_id: self.upstream_request_id.clone(),
            error: detail.or(error.map(str::to_owned)),
            answer: None,
        };
        let Some(answer) = answer.map(|bytes| Payload::encode(&bytes)) else {
            return self.submit(settle);
        };
        let (run, seq, instance) = (settle.run, settle.seq, settle.instance);
        let (parts, last) = Keep::before(run, seq, instance, Role::Answer, answer);
        let settle = Settle { answer: Some(last), ..settle };
        if parts.is_empty() {
            return self.submit(settle);
        }
        let store = self.host.store.clone();
        Box::pin(async move {
            for part in parts {
                store.ask(part, Durability::Committed).await?;
            }
            store.ask(settle, Durability::Synced).await
        })
    }

    fn submit(&self, settle: Settle) -> Settling {
        let alone = self.host.registry().is_alone();
        Box::pin(match alone {
            true => self.host.store.ask_here(settle, Durability::Synced),
            false => self.host.store.ask(settle, Durability::Synced),
        })
    }

    /// Waits until the settlement is recorded, however long the store takes.
    async fn settle_down(mut self) {
        while !self.machine.is_over() {
            let slow_at = self.slow_at;
            let again_at = self.again_at;
            tokio::select! {
                settled = async {
                    match &mut self.settling {
                        Some(pending) => pending.await,
                        None => std::future::pending().await,
                    }
                } => {
                    self.settling = None;
                    self.note(&settled);
                    self.on(Event::Settled(settled.map(drop)));
                }
                () = sleep_until(slow_at) => {
                    self.slow_at = None;
                    self.on(Event::SettleSlow);
                }
                () = sleep_until(again_at.map(|a| a.0)) => {
                    if let Some((_, ending, error)) = self.again_at.take() {
                        self.settling = Some(self.settle(ending, error));
                    }
                }
            }
            // Nothing is on its way although the machine is not over: a defect, not a wait.
            if self.settling.is_none() && self.again_at.is_none() && !self.machine.is_over() {
                tracing::error!(seq = %self.live.seq, "an exchange stopped before it was settled");
                break;
            }
        }
        self.is_recorded();
        self.gives_its_turn();
        self.host.exchange_over(&self.call, &self.live);
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

    fn note(&self, settled: &Result<Settled, Error>) {
        let call = &self.call;
        let usage = self.outcome.usage.unwrap_or_default();
        self.host.metrics.committed(self.settle_began.elapsed());
        match settled {
            Ok(s) => {
                let state = self.ending.map_or("unknown", |e| e.state().name());
                self.host.metrics.settled(Counted {
                    upstream: call.upstream_name(),
                    model: &call.request.model,
                    state,
                    usage,
                    cost_nano_usd: s.cost_nano_usd,
                });
                self.host.remember_billed(call, self.live.seq, usage.input_total());
                if !self.outcome.kept.is_empty() {
                    self.host.memory(call.seat.run).lock().kept.add(&self.outcome.kept);
                }
                let seq = self.live.seq;
                let answered = self.machine.status().is_some_and(|s| (200..300).contains(&s));
                self.host.saw(Seen::Settled { seq, status: s.run_status, answered });
                if let Some(until) = self.limited {
                    self.host.saw(Seen::Limited { seq, until });
                }
                let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
                tracing::info!(
                    run = %call.seat.id, seq = %self.live.seq, upstream = call.upstream_name(),
                    model = %call.request.model, status = self.machine.status(), state, retries = self.retries,
                    queue_ms = ms(self.sent_at - call.arrived),
                    first_byte_ms = self.head_at.map(|at| ms(at - self.sent_at)),
                    total_ms = ms(call.arrived.elapsed()),
                    input_tokens = usage.input_total(), output_tokens = usage.output,
                    cost_nano_usd = s.cost_nano_usd, overrun_nano_usd = s.overrun_nano_usd,
                    request_id = self.upstream_request_id.as_deref(), "call"
                );
            }
            Err(e) => {
                tracing::error!(run = %call.seat.id, seq = %self.live.seq, error = %e, "not settled");
            }
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
