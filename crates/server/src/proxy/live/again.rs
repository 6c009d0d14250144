//! Between two tries of one call: what is noted, who is waited for, and who wants it.
//!
//! Whether and when is the call machine's: see `outlast_core::call::patience`.

use std::time::Duration;

use http::HeaderMap;
use outlast_core::{
    call::{Patience, Told, exchange::Event},
    engine::{call::retry::Retry, op::Durability},
    store::Ask as _,
};
use tokio::time::Instant;

use super::{Carry, Log};
use crate::{
    dialect::{Outcome, says::Says},
    proxy::{call::Call, host::Host},
    wire::refuse::Refusal,
};

/// A pause of a call, and what was tried before it.
pub(super) struct Rest {
    pub tries: Vec<Option<u16>>,
    pub pause_ms: u64,
}

/// How often `call` is tried, and how long.
pub(super) fn patience(host: &Host, call: &Call) -> Patience {
    if !call.tried_again {
        return Patience::NONE;
    }
    Patience {
        tries: host.config.upstream_retries.saturating_add(1),
        within_ms: u64::try_from(host.config.admit_wait.as_millis()).unwrap_or(u64::MAX),
        seed: host.nonce(),
    }
}

/// Whether a caller leaves trying again to us: it says so, or does not say that it does so itself. The official SDKs
/// count their own tries in each request, the first one included.
pub fn leaves_it_to_us(headers: &HeaderMap) -> Result<bool, Refusal> {
    match headers.get("x-outlast-retries").map(|v| v.to_str().unwrap_or("")) {
        None => Ok(!headers.contains_key("x-stainless-retry-count")),
        Some(text) if text.eq_ignore_ascii_case("on") => Ok(true),
        Some(text) if text.eq_ignore_ascii_case("off") => Ok(false),
        Some(text) => {
            let short: String = text.chars().take(40).collect();
            Err(Refusal::BadHeader { name: "X-Outlast-Retries", had: short, wanted: "on or off" })
        }
    }
}

impl Carry {
    /// What the machine is told of a try that came to nothing, with the answer's headers as they came.
    pub(super) fn told(&self, answer: Option<&HeaderMap>) -> Told {
        let elapsed_ms = self.began_at.map_or(Duration::ZERO, |at| at.elapsed()).as_millis();
        let retry_after_ms = answer.and_then(|headers| {
            let now = self.host.clock.now();
            let wait_ms = Says { headers, now }.retry_after()?.ms_since(now);
            u64::try_from(wait_ms).ok()
        });
        Told {
            elapsed_ms: u64::try_from(elapsed_ms).unwrap_or(u64::MAX),
            retry_after_ms,
            lasting: self.limited.is_some() || self.host.is_draining(),
        }
    }

    /// Waits between two tries, if there is to be another: then true, and it is on disk.
    pub(super) async fn goes_again(&mut self) -> bool {
        let Some(rest) = self.rest.take() else { return false };
        let tried = rest.tries.last().copied().flatten();
        tracing::info!(
            run = %self.call.seat.id, seq = %self.live.seq, upstream = self.call.upstream_name(),
            status = tried, pause_ms = rest.pause_ms, tries = rest.tries.len(), "tries again"
        );
        // Nobody waits for it: without it a death leaves the call in doubt, and no more.
        drop(self.host.store.ask(self.retry(rest.tries, true), Durability::Committed));
        tokio::select! {
            biased;
            () = self.live.progress.closed() => self.on(Event::Abandoned),
            () = tokio::time::sleep(Duration::from_millis(rest.pause_ms)) => self.on(Event::Rested),
        }
        if let Some(tries) = self.asking.take() {
            let may = self.host.store.ask(self.retry(tries, false), Durability::Synced).await;
            self.on(Event::MayLeave(may));
        }
        std::mem::take(&mut self.again)
    }

    fn retry(&self, tries: Vec<Option<u16>>, resting: bool) -> Retry {
        let (run, seq, instance) = (self.call.seat.run, self.live.seq, self.live.instance);
        Retry { run, seq, instance, tries, resting }
    }

    /// Forgets what came of the try before.
    pub(super) fn begins_again(&mut self) {
        *self.live.log() = Log::default();
        self.outcome = Outcome::default();
        self.upstream_request_id = None;
        self.head_at = None;
        self.again = true;
        self.retries += 1;
        self.host.metrics.tried_again(self.call.upstream_name());
    }

    /// A try is about to leave.
    pub(super) fn leaves(&mut self) {
        self.sent_at = Instant::now();
        if let Some(turn) = &mut self.turn {
            turn.leaves();
        }
        if self.began_at.replace(self.began_at.unwrap_or(self.sent_at)).is_none() {
            self.host.metrics.queued(self.sent_at - self.call.arrived);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_tries_again_itself_is_left_alone() {
        for (headers, wanted) in [
            (vec![], Some(true)),
            (vec![("x-stainless-retry-count", "0")], Some(false)),
            (vec![("x-stainless-retry-count", "2")], Some(false)),
            (vec![("x-outlast-retries", "off")], Some(false)),
            (vec![("x-outlast-retries", "On"), ("x-stainless-retry-count", "0")], Some(true)),
            (vec![("x-outlast-retries", "3")], None),
        ] {
            let map: HeaderMap =
                headers.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect();
            assert_eq!(leaves_it_to_us(&map).ok(), wanted, "{headers:?}");
        }
    }
}
