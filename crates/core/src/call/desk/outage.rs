//! Outages at the desk: what each event tells of an upstream, and which held call probes it.

use super::{Desk, ForExchange, Key, Next, Round};
use crate::{
    call::{
        FailedTry,
        exchange::{Event, Failure, Silence},
        outages::Probe,
    },
    words::{Cause, Digest},
};

impl Desk {
    /// Records what an event shows of the upstream's health. Returns the event to pass to the exchange, or `None` if
    /// the call goes on waiting because another call probes the upstream.
    pub(super) fn weigh(&mut self, key: Key, event: Event, round: &mut Round) -> Option<Event> {
        Some(match event {
            Event::Unreachable(told) => Event::Unreachable(self.fails(key, told, round)),
            Event::Refused { len, told } => Event::Refused { len, told: self.fails(key, told, round) },
            Event::Head { status, .. } if (200..300).contains(&status) => {
                self.answers(key, round);
                event
            }
            Event::UpstreamError(Failure::AfterSend) | Event::Timeout(Silence::FirstByte) => {
                self.fails(key, FailedTry { cause: Some(Cause::Lost), ..FailedTry::default() }, round);
                event
            }
            Event::Rested => return self.rested(key, round),
            event => event,
        })
    }

    /// Counts a failed call. Returns the facts about its failure, with the time to the next probe if there is
    /// an outage.
    fn fails(&mut self, key: Key, told: FailedTry, round: &mut Round) -> FailedTry {
        let Some(cause) = told.cause else {
            self.answers(key, round);
            return told;
        };
        let Some(live) = self.exchanges.get(&key) else { return told };
        let (outages, now_ms) = (&mut self.shared.outages, round.at.now_ms);
        let probe_ms = outages.failed(&live.wants.way, Probe::Call(key), cause, now_ms);
        if probe_ms.is_some() {
            round.exchange(key, ForExchange::Outage(cause));
        }
        FailedTry { probe_ms, ..told }
    }

    /// Ends an outage of the call's upstream, and lets the calls go that were held.
    fn answers(&mut self, key: Key, round: &mut Round) {
        let Some(way) = self.exchanges.get(&key).map(|live| live.wants.way) else { return };
        if self.shared.outages.answered(&way) {
            self.release(|of| *of == way, round);
        }
    }

    /// Ends an outage in which no connection to the call's upstream was made: now one is.
    pub(super) fn connected(&mut self, key: Key, round: &mut Round) {
        let Some(way) = self.exchanges.get(&key).map(|live| live.wants.way) else { return };
        if self.shared.outages.connected(&way) {
            self.release(|of| *of == way, round);
        }
    }

    /// Has a call of each upstream with an outage probe it now.
    pub(super) fn probe(&mut self, round: &mut Round) {
        self.shared.outages.probe_now(round.at.now_ms);
        self.release(|_| true, round);
        round.may_retry(self.shared.waiters.wake());
    }

    /// Lets the calls ask again that an outage of one of these upstreams holds.
    fn release(&mut self, is_of: impl Fn(&Digest) -> bool, round: &mut Round) {
        let held = self.exchanges.iter().filter(|(_, l)| l.machine.is_held() && is_of(&l.wants.way));
        let mut held: Vec<Key> = held.map(|(key, _)| *key).collect();
        held.sort_unstable();
        round.next.extend(held.into_iter().map(|key| Next::Exchange(key, Event::Rested)));
    }

    fn rested(&mut self, key: Key, round: &mut Round) -> Option<Event> {
        let live = self.exchanges.get(&key).filter(|live| live.machine.is_held());
        let Some(live) = live else { return Some(Event::Rested) };
        let now_ms = round.at.now_ms;
        match self.shared.outages.may_go(&live.wants.way, Probe::Call(key), now_ms) {
            Ok(()) => Some(Event::Rested),
            Err((_, pause_ms)) => {
                let held_ms = now_ms - live.left_at_ms.unwrap_or(now_ms);
                if !live.machine.may_rest_until(held_ms + pause_ms) {
                    return Some(Event::Abandoned);
                }
                round.exchange(key, ForExchange::RestOn { pause_ms });
                None
            }
        }
    }
}
