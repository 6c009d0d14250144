//! State of the task that carries an exchange, and of its settlement: result, time limit, retry when the store fails.
//!
//! Between two tries of a call there is a pause, and the tries so far are recorded; the call machine decides whether and
//! when: see `outlast_core::call::patience`. At the end the answer and its bill are written to the store.

use std::{pin::Pin, sync::Arc, time::Duration};

use http::HeaderMap;
use outlast_core::{
    call::{
        FailedTry, Patience, desk,
        exchange::{Ending, Event},
    },
    engine::{AwaitProvider, ProviderAnswered, Retry, Settle, Settled, StorePart},
    journal::{Payload, Role},
    run::{Record, Status},
    store::{Ask as _, Durability, Error},
    words::{Cause, Micros, Outage},
};
use tokio::time::{Instant, sleep_until};

use crate::{
    dialect::{Outcome, told_time::Says},
    proxy::{
        busy_waiting,
        call::Call,
        config::{Config, Seen},
        host::Host,
        log::{Live, Log},
        metrics::Counted,
        or_never, record, resume_tax,
    },
};

/// State of the task that carries one exchange to its settlement.
pub(super) struct Carry {
    pub host: Arc<Host>,
    pub live: Arc<Live>,
    pub call: Arc<Call>,
    /// Tokens to which the request's output cap is lowered; `None`: the cap stays.
    pub cap: Option<u64>,
    pub answer: Answered,
    pub tries: Tries,
    pub settling: Settling,
}

/// Result of the current try.
#[derive(Default)]
pub(super) struct Answered {
    pub status: Option<u16>,
    pub head_at: Option<Instant>,
    pub request_id: Option<String>,
    pub outcome: Outcome,
    /// Reason why the answer's text cannot be read; `None` if it can be.
    pub unreadable: Option<String>,
    /// Time at which the upstream's usage limit ends; `None` if it reported none.
    pub limited: Option<Micros>,
    /// Cause of the outage that the failure may belong to; `None` if there is none.
    pub cause: Option<Cause>,
}

/// Times at which the call's first and last try were sent.
#[derive(Default)]
pub(super) struct Tries {
    pub first_at: Option<Instant>,
    pub last_at: Option<Instant>,
    /// Number of retries so far, without the first try.
    pub again: u32,
}

/// Pause before a settlement that failed is tried again.
const SETTLE_AGAIN: Duration = Duration::from_millis(500);

/// Future that stores a call's settlement (outcome, cost, answer). It stores the parts of a long answer first.
pub(super) type Pending = Pin<Box<dyn Future<Output = Result<Settled, Error>> + Send>>;

/// State of an exchange's settlement, over all tries to commit it.
#[derive(Default)]
pub(super) struct Settling {
    pub ending: Option<Ending>,
    pub began_at: Option<Instant>,
    pub pending: Option<Pending>,
    pub slow_at: Option<Instant>,
    again: Option<(Instant, Ending, Option<&'static str>)>,
    /// Active time that the settlement posts, in milliseconds.
    pub active_ms: i64,
    /// Whether the answer was dropped, because too many bytes waited to be recorded.
    pub dropped: bool,
}

/// Next event of a settlement: its result, that it takes long, or that it is time to try again.
pub(super) enum Came {
    Settled(Result<Settled, Error>),
    Slow,
    Again(Ending, Option<&'static str>),
}

impl Settling {
    /// Waits for the next event. Never returns if no settlement is in progress.
    pub async fn next(&mut self) -> Came {
        let Settling { pending, slow_at, again, .. } = self;
        tokio::select! {
            settled = or_never(pending.as_mut()) => {
                *pending = None;
                Came::Settled(settled)
            }
            () = or_never(slow_at.map(sleep_until)) => {
                *slow_at = None;
                Came::Slow
            }
            (ending, error) = or_never(again.map(async |(at, ending, error)| {
                sleep_until(at).await;
                (ending, error)
            })) => {
                *again = None;
                Came::Again(ending, error)
            }
        }
    }

    /// Schedules another try of the settlement, after a pause: the store failed.
    pub fn rests(&mut self, ending: Ending, error: Option<&'static str>) {
        self.again = Some((Instant::now() + SETTLE_AGAIN, ending, error));
    }
}

/// Returns the rules by which `call` is retried: how many tries, in which time, and how long an outage holds it.
pub fn patience(config: &Config, call: &Call, seed: impl FnOnce() -> u64) -> Patience {
    let hold_ms = call.hold_ms;
    if !call.tried_again {
        return Patience { hold_ms, ..Patience::NONE };
    }
    Patience {
        hold_ms,
        tries: config.upstream_retries.saturating_add(1),
        within_ms: u64::try_from(config.admit_wait.as_millis()).unwrap_or(u64::MAX),
        seed: seed(),
    }
}

impl Carry {
    /// Returns the facts of a failed try that the call machine needs. `answer`: its response headers, if any came.
    pub(super) fn told(&self, answer: Option<&HeaderMap>) -> FailedTry {
        let elapsed_ms = self.tries.first_at.map_or(Duration::ZERO, |at| at.elapsed()).as_millis();
        let retry_after_ms = answer.and_then(|headers| {
            let now = self.host.clock.now();
            let wait_ms = Says { headers, now }.retry_after()?.ms_since(now);
            u64::try_from(wait_ms).ok()
        });
        FailedTry {
            elapsed_ms: u64::try_from(elapsed_ms).unwrap_or(u64::MAX),
            retry_after_ms,
            lasting: self.answer.limited.is_some() || self.host.is_draining(),
            cause: self.answer.cause,
            probe_ms: None,
        }
    }

    /// Records that the call pauses between two tries, and waits for `pause_ms` milliseconds. Ends early if the inbox
    /// gets a deed.
    pub(super) async fn rest(&mut self, tries: Vec<Option<u16>>, pause_ms: u64) {
        tracing::info!(
            run = %self.call.seat.id, seq = %self.live.seq(), upstream = self.call.upstream_name(),
            status = tries.last().copied().flatten(), pause_ms, tries = tries.len(), "tries again"
        );
        // Not awaited: without this record, a death of the process leaves the call in doubt, and no more.
        drop(self.host.store.ask(self.retry(tries, true), Durability::Committed));
        self.rest_on(pause_ms).await;
    }

    /// Waits for `pause_ms` milliseconds while another call probes the upstream. Ends early if the inbox gets a deed.
    pub(super) async fn rest_on(&mut self, pause_ms: u64) {
        tokio::select! {
            biased;
            () = self.live.inbox.filled() => {}
            () = tokio::time::sleep(Duration::from_millis(pause_ms)) => self.on(Event::Rested),
        }
    }

    /// Records in the run's row that it waits for its provider, which has an outage.
    pub(super) async fn await_provider(&mut self, cause: Cause) {
        let outage = Outage { upstream: self.call.upstream_name().to_owned(), cause };
        let waits = AwaitProvider { run: self.call.seat.run, outage: outage.clone() };
        match self.host.store.ask(waits, Durability::Committed).await {
            Ok(since) => self.host.saw(Seen::Outage { outage, since }),
            // The run reads as running meanwhile; the next failure notes it.
            Err(e) => tracing::warn!(run = %self.call.seat.id, error = %e, "cannot note that {outage}"),
        }
    }

    /// Records the tries so far durably. The next try is sent only after that.
    pub(super) async fn ask_again(&mut self, tries: Vec<Option<u16>>) {
        let may = self.host.store.ask(self.retry(tries, false), Durability::Synced).await;
        self.on(Event::MayLeave(may));
    }

    fn retry(&self, tries: Vec<Option<u16>>, resting: bool) -> Retry {
        Retry { opening: self.live.opening, tries, resting }
    }

    /// Discards the answer of the failed try, and counts a retry.
    pub(super) fn begin_again(&mut self) {
        *self.live.log.lock() = Log::default();
        // A usage limit that an earlier try reported still holds.
        self.answer = Answered { limited: self.answer.limited, ..Answered::default() };
        self.tries.again += 1;
        self.host.metrics.tried_again(self.call.upstream_name());
    }

    /// Reports to the desk that a try is about to be sent.
    pub(super) fn leaves(&mut self) {
        let now = Instant::now();
        self.host.registry.on(desk::Event::Leaves(self.live.key()));
        self.tries.last_at = Some(now);
        if self.tries.first_at.is_none() {
            self.tries.first_at = Some(now);
            self.host.metrics.queued(now - self.call.arrived);
        }
    }
}

impl Carry {
    pub(super) fn settles(&mut self, came: Came) {
        match came {
            Came::Settled(settled) => {
                self.note(&settled);
                self.on(Event::Settled(settled.map(drop)));
            }
            Came::Slow => self.on(Event::SettleSlow),
            Came::Again(ending, error) => self.submit(ending, error),
        }
    }

    pub(super) fn settle(&mut self, ending: Ending, error: Option<&'static str>) {
        if let Some(usage) = self.answer.outcome.usage {
            self.host.registry.on(desk::Event::Used(self.live.key(), usage.total()));
        }
        self.settling.slow_at = Some(Instant::now() + self.host.config.settle_wait);
        self.submit(ending, error);
    }

    /// Drops the answer from memory, because too many bytes wait for a store that cannot record them.
    ///
    /// A settlement that is already with the store keeps its own copy; the next try to settle is without the answer,
    /// which then cannot be replayed.
    pub(super) fn drop_answer(&mut self) {
        let frames = std::mem::take(&mut self.live.log.lock().frames);
        self.settling.dropped = true;
        let bytes = frames.bytes().len();
        tracing::warn!(
            run = %self.call.seat.id, seq = %self.live.seq(), bytes,
            "too much waits to be recorded: of this answer only the usage is kept, and it will not be replayed"
        );
    }

    fn submit(&mut self, ending: Ending, error: Option<&'static str>) {
        self.settling.ending = Some(ending);
        self.settling.began_at = Some(Instant::now());
        self.settling.active_ms += self.host.memories.active_since(&self.call.seat);
        let call = &self.call;
        let kept = ending == Ending::Done && call.seat.record != Record::Digests && !self.settling.dropped;
        let answer = kept.then(|| {
            let log = self.live.log.lock();
            record::to_bytes(log.status, &log.headers, &log.frames)
        });
        let detail = self.answer.outcome.error.as_ref().map(|e| {
            let text = call.mask_secrets(&self.host.config.providers, &e.message);
            text.chars().take(500).collect::<String>()
        });
        let settle = Settle {
            opening: self.live.opening,
            attempt: call.seat.attempt,
            close: ending.close(call.priced.bill(&self.answer.outcome)),
            active_ms: self.settling.active_ms,
            http_status: self.answer.status,
            upstream_request_id: self.answer.request_id.clone(),
            error: detail.or(error.map(str::to_owned)),
            answer: None,
        };
        self.settling.pending = Some(self.with_answer(settle, answer));
    }

    fn with_answer(&self, settle: Settle, answer: Option<Vec<u8>>) -> Pending {
        let store = self.host.store.clone();
        let (parts, answer) = match answer.map(|bytes| Payload::encode(&bytes)) {
            Some(answer) => {
                let (parts, last) = StorePart::before(settle.opening, Role::Answer, answer);
                (parts, Some(last))
            }
            None => (Vec::new(), None),
        };
        let settle = Settle { answer, ..settle };
        if !parts.is_empty() {
            return Box::pin(async move {
                for part in parts {
                    store.ask(part, Durability::Committed).await?;
                }
                store.ask(settle, Durability::Synced).await
            });
        }
        Box::pin(match self.host.registry.is_alone() {
            true => store.ask_here(settle, Durability::Synced),
            false => store.ask(settle, Durability::Synced),
        })
    }

    fn note(&self, settled: &Result<Settled, Error>) {
        let (call, seq) = (&self.call, self.live.seq());
        let usage = self.answer.outcome.usage.unwrap_or_default();
        let took = self.settling.began_at.map_or(Duration::ZERO, |at| at.elapsed());
        self.host.metrics.committed(took);
        let s = match settled {
            Ok(s) => s,
            Err(e) => {
                tracing::error!(run = %call.seat.id, %seq, error = %e, "not settled");
                return;
            }
        };
        let state = self.settling.ending.map_or("unknown", |e| e.state().name());
        self.host.metrics.settled(Counted {
            upstream: call.upstream_name(),
            model: &call.request.model,
            state,
            usage,
            cost_nano_usd: s.cost_nano_usd,
            is_listed: call.seat.is_listed,
            caller: call.caller.as_deref(),
        });
        let (run, model) = (call.seat.run, &call.request.model);
        self.host.memories.bill(run, seq, call.upstream_name(), model, &usage);
        if !self.answer.outcome.kept.is_empty() {
            self.host.memories.of(run).lock().kept.add(&self.answer.outcome.kept);
        }
        if self.settling.ending == Some(Ending::Done) {
            busy_waiting::answered(&self.host, call, || self.live.log.lock().frames.bytes().to_vec());
        }
        resume_tax::settled(&self.host, call, seq);
        let answered = self.answer.status.is_some_and(|s| (200..300).contains(&s));
        let heard = self.answer.status.is_some() && self.answer.cause.is_none();
        let sent_ago = self.tries.last_at.map_or(Duration::ZERO, |at| at.elapsed());
        if heard && s.run_status == Status::Waiting {
            let sent_ago_ms = i64::try_from(sent_ago.as_millis()).unwrap_or(i64::MAX);
            let answered = ProviderAnswered { run, upstream: call.upstream_name().to_owned(), sent_ago_ms };
            drop(self.host.store.ask(answered, Durability::Committed));
        }
        let upstream = call.upstream_name().to_owned();
        self.host.saw(Seen::Settled {
            seq,
            upstream,
            status: s.run_status,
            answered,
            heard,
            failed: self.answer.cause,
            sent_ago,
        });
        if let Some(until) = self.answer.limited {
            self.host.saw(Seen::Limited { seq, until });
        }
        let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        let (sent_at, head_at) = (self.tries.last_at, self.answer.head_at);
        tracing::info!(
            run = %call.seat.id, %seq, caller = call.caller.as_deref(), upstream = call.upstream_name(),
            model = %call.request.model, status = self.answer.status, state, retries = self.tries.again,
            queue_ms = sent_at.map(|at| ms(at - call.arrived)),
            first_byte_ms = sent_at.zip(head_at).map(|(sent, head)| ms(head - sent)),
            total_ms = ms(call.arrived.elapsed()),
            input_tokens = usage.input_total(), output_tokens = usage.output,
            cost_nano_usd = s.cost_nano_usd, overrun_nano_usd = s.overrun_nano_usd,
            overrun_tokens = s.overrun_tokens,
            request_id = self.answer.request_id.as_deref(), "call"
        );
    }
}
