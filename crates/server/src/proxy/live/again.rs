//! Retries of one call: the record of the tries so far, and the pause between two.
//!
//! The call machine decides whether and when: see `outlast_core::call::patience`.

use std::time::Duration;

use http::HeaderMap;
use outlast_core::{
    call::{FailedTry, Patience, desk, exchange::Event},
    engine::{AwaitProvider, Retry},
    store::{Ask as _, Durability},
    words::{Cause, Outage},
};
use tokio::time::Instant;

use super::carry::{Answered, Carry};
use crate::{
    dialect::told_time::Says,
    proxy::{
        call::Call,
        config::{Config, Seen},
        log::Log,
    },
};

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
