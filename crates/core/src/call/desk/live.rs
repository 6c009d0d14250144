//! Exchanges at the desk: attached connections, the turn at the upstream, and memory held while stuck.

use std::sync::Arc;

use super::{At, Desk, ForExchange, Key, Next, Round};
use crate::call::{
    ConnectionId, Exchange, Levels, connection,
    exchange::{Action, Charge, Ending, Event},
    outages::Probe,
    rates::{Turn, Wants},
    unrecorded::Held,
};

/// Exchange with the data that the desk keeps for it.
#[derive(Debug)]
pub(super) struct Live {
    pub machine: Exchange,
    pub attached: Vec<ConnectionId>,
    pub wants: Arc<Wants>,
    turn: Option<Turn>,
    /// Tokens that the answer used; `None` until they are known.
    used: Option<u64>,
    /// Monotonic time at which the first try was sent, in milliseconds; `None` before.
    pub left_at_ms: Option<u64>,
    /// Outcome with which the entry closes; `None` before the first settlement.
    ending: Option<Ending>,
    /// Share of the memory for unrecorded answers, held while this answer waits to be recorded; `None` otherwise.
    held: Option<Held>,
}

impl Live {
    pub fn new(machine: Exchange, wants: Arc<Wants>, turn: Option<Turn>) -> Live {
        Live {
            machine,
            attached: Vec::new(),
            wants,
            turn,
            used: None,
            left_at_ms: None,
            ending: None,
            held: None,
        }
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
            let deed = match action {
                Action::Tell(progress) => {
                    let told = |c: &ConnectionId| Next::Client(*c, connection::Event::Progress(progress));
                    round.next.extend(live.attached.iter().map(told));
                    continue;
                }
                Action::Settle { ending, error } => {
                    live.ending = Some(ending);
                    ForExchange::Settle { ending, error }
                }
                Action::SettleAgain { ending, error } => ForExchange::SettleAgain { ending, error },
                Action::Abort => ForExchange::Abort,
                Action::Rest { tries, pause_ms } => {
                    if live.attached.is_empty() {
                        round.next.push_back(Next::Exchange(key, Event::Abandoned));
                    }
                    ForExchange::Rest { tries, pause_ms }
                }
                Action::AskAgain { tries } => ForExchange::AskAgain { tries },
                Action::SendAgain => ForExchange::SendAgain,
            };
            round.exchange(key, deed);
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
