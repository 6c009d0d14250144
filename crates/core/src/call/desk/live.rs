//! Exchanges at the desk: attached connections, the turn at the upstream, and memory held while stuck.

use std::sync::Arc;

use super::{At, Desk, ForExchange, Key, Next, Round};
use crate::{
    call::{
        ConnectionId, Exchange, FailedTry, Levels, connection,
        exchange::{Action, Charge, Ending, Event, Failure, Silence},
        outages::Probe,
        rates::{Turn, Wants},
        unrecorded::Held,
    },
    words::{Cause, Digest},
};

/// Exchange with the data that the desk keeps for it.
#[derive(Debug, Default)]
pub(super) struct Live {
    pub machine: Exchange,
    pub attached: Vec<ConnectionId>,
    pub wants: Arc<Wants>,
    turn: Option<Turn>,
    /// Tokens that the answer used; `None` until they are known.
    used: Option<u64>,
    /// Monotonic time at which the first try was sent, in milliseconds; `None` before.
    pub left_at_ms: Option<u64>,
    /// The same of the newest try.
    sent_at_ms: u64,
    /// Outcome with which the entry closes; `None` before the first settlement.
    ending: Option<Ending>,
    /// Share of the memory for unrecorded answers, held while this answer waits to be recorded; `None` otherwise.
    held: Option<Held>,
}

impl Live {
    pub fn new(machine: Exchange, wants: Arc<Wants>, turn: Option<Turn>) -> Live {
        Live { machine, wants, turn, ..Live::default() }
    }

    /// Returns the tokens that count against the upstream's rate limit: 0 for a refusal. `None` if the usage is not
    /// known; the call then counts with its bound.
    fn tokens(&self) -> Option<u64> {
        match self.ending {
            Some(Ending::Failed(Charge::Nothing)) => Some(0),
            _ => self.used,
        }
    }
}

impl Desk {
    pub(super) fn feed_exchange(&mut self, key: Key, event: Event, round: &mut Round) {
        let Some(event) = self.weigh(key, event, round) else { return };
        let Some(live) = self.exchanges.get_mut(&key) else { return };
        let actions = live.machine.on(event);
        // Done before any client is told: one that hears of an unrecorded answer finds new calls refused.
        match live.held.take() {
            None if live.machine.is_stuck() => {
                let held = self.shared.unrecorded.add(live.machine.bytes());
                if !held.keeps_answer() {
                    round.exchange(key, ForExchange::DropAnswer);
                }
                live.held = Some(held);
            }
            Some(held) if !live.machine.is_stuck() => self.shared.unrecorded.recorded(held),
            held => live.held = held,
        }
        for action in actions {
            match action {
                Action::Tell(progress) => {
                    let told = |c: &ConnectionId| Next::Client(*c, connection::Event::Progress(progress));
                    round.next.extend(live.attached.iter().map(told));
                }
                Action::Host(deed) => {
                    match deed {
                        ForExchange::Settle { ending, .. } => live.ending = Some(ending),
                        ForExchange::Rest { .. } if live.attached.is_empty() => {
                            round.next.push_back(Next::Exchange(key, Event::Abandoned));
                        }
                        _ => {}
                    }
                    round.exchange(key, deed);
                }
            }
        }
        if live.machine.is_over() {
            self.settled(key, round);
        }
    }

    /// Ends an exchange that is settled, or never will be. Connections that ask for it later look at the store.
    fn settled(&mut self, key: Key, round: &mut Round) {
        let Some(mut live) = self.exchanges.remove(&key) else { return };
        let tokens = live.tokens();
        self.shared.outages.give_back(&live.wants.way, Probe::Call(key));
        match (live.turn.take(), live.ending) {
            (Some(turn), Some(Ending::Void)) => self.shared.rates.give_back(turn),
            (Some(turn), _) => self.shared.rates.over(turn, tokens),
            (None, _) => {}
        }
        round.exchange(key, ForExchange::Over);
        round.may_retry(self.shared.waiters.wake());
    }

    pub(super) fn leaves(&mut self, key: Key, at: At) {
        let Some(live) = self.exchanges.get_mut(&key) else { return };
        live.left_at_ms.get_or_insert(at.now_ms);
        live.sent_at_ms = at.now_ms;
        if let Some(turn) = live.turn.as_mut() {
            self.shared.rates.leaves(turn, at.now_ms);
        }
    }

    pub(super) fn used(&mut self, key: Key, tokens: u64) {
        if let Some(live) = self.exchanges.get_mut(&key) {
            live.used = Some(tokens);
        }
    }

    pub(super) fn told(&mut self, key: Key, levels: Levels, at: At) {
        if let Some(turn) = self.exchanges.get(&key).and_then(|live| live.turn.as_ref()) {
            self.shared.rates.learn(turn, levels, at.now_ms);
        }
    }
}

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
            Event::MayLeave(Ok(true)) => {
                if let Some(live) = self.exchanges.get_mut(&key) {
                    live.sent_at_ms = round.at.now_ms;
                }
                event
            }
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
        let wants = live.wants.clone();
        let was_out = outages.is_out(&wants.way);
        let probe_ms = outages.failed(&wants, Probe::Call(key), cause, now_ms);
        if probe_ms.is_some() {
            round.exchange(key, ForExchange::Outage(cause));
        } else if outages.fails_alone(&wants, cause) {
            round.exchange(key, ForExchange::FailsAlone);
            if was_out {
                self.release(|of| *of == wants.way, round);
            }
        }
        FailedTry { probe_ms, ..told }
    }

    /// Ends an outage of the call's upstream, and lets the calls go that were held.
    fn answers(&mut self, key: Key, round: &mut Round) {
        let Some(live) = self.exchanges.get(&key) else { return };
        let wants = live.wants.clone();
        if self.shared.outages.answered(&wants, live.sent_at_ms) {
            self.release(|of| *of == wants.way, round);
        }
    }

    /// Ends an outage in which no connection to the call's upstream was made: now one is.
    pub(super) fn connected(&mut self, key: Key, round: &mut Round) {
        let Some(way) = self.exchanges.get(&key).map(|live| live.wants.way) else { return };
        if self.shared.outages.connected(&way) {
            self.release(|of| *of == way, round);
        }
    }

    /// Sends a waiting call of each upstream that is away, so that it is probed now.
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
