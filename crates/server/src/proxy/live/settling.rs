//! The settlement of an exchange: what is recorded, and what it waits for when the store cannot take it.

use std::{pin::Pin, time::Duration};

use outlast_core::{
    call::exchange::{Ending, Event},
    engine::{
        call::{keep::Keep, settle::Settle},
        op::{Durability, Settled},
    },
    journal::{Role, payload::Payload},
    run::Record,
    store::{Ask as _, Error},
};
use tokio::time::Instant;

use super::{Carry, sleep_until};
use crate::{
    door::metrics::Counted,
    proxy::{host::Seen, record::Answer},
};

/// The pause before a settlement that failed is tried again.
pub const SETTLE_AGAIN: Duration = Duration::from_millis(500);

/// A settlement on its way to the store, behind the parts of a long answer.
pub(super) type Settling = Pin<Box<dyn Future<Output = Result<Settled, Error>> + Send>>;

/// An answer that waits to be recorded.
#[derive(Clone, Copy)]
pub(super) struct Stuck {
    /// What it holds in memory; `None`: only its usage is left.
    kept: Option<u64>,
}

impl Carry {
    /// The store cannot take the answer: memory is not to fill up with such. A settlement that is already
    /// with the store keeps its own copy; the next try is without the answer.
    pub(super) fn keep_what_may_stay(&mut self) {
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

    pub(super) fn is_recorded(&mut self) {
        if let Some(stuck) = self.stuck.take() {
            self.host.unrecorded.recorded(stuck.kept);
        }
    }

    pub(super) fn settle(&mut self, ending: Ending, error: Option<&'static str>) -> Settling {
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
    pub(super) async fn settle_down(mut self) {
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
