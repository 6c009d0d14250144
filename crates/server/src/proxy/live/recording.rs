//! Settlement of an exchange: its answer and bill, written to the store.

use std::time::Duration;

use outlast_core::{
    call::{
        desk,
        exchange::{Ending, Event},
    },
    engine::{ProviderAnswered, Settle, Settled, StorePart},
    journal::{Payload, Role},
    run::{Record, Status},
    store::{Ask as _, Durability, Error},
};
use tokio::time::Instant;

use super::carry::{Came, Carry, Pending};
use crate::proxy::{busy_waiting, config::Seen, metrics::Counted, record, resume_tax};

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
        if answered && s.run_status == Status::Waiting {
            let answered = ProviderAnswered { run, upstream: call.upstream_name().to_owned() };
            drop(self.host.store.ask(answered, Durability::Committed));
        }
        let upstream = call.upstream_name().to_owned();
        self.host.saw(Seen::Settled {
            seq,
            upstream,
            status: s.run_status,
            answered,
            failed: self.answer.cause,
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
