//! Whose turn it is at an upstream that takes only so many requests and tokens a minute, over all runs of this server.
//!
//! A call waits for its turn before it is admitted: it holds neither a reservation nor a transaction meanwhile, a
//! client that leaves is dropped without a trace, and what the journal has is given again without a turn.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use outlast_core::{
    call::{
        ConnectionId,
        rate::{Lane, Levels, Rate, Ticket},
    },
    words::digest::Digest,
};

/// Beyond so many lanes of one upstream, those that say nothing any more are forgotten.
const MANY: usize = 256;

/// Of a text's bytes, so many are a token: what a provider's own count of it will be near.
const BYTES_A_TOKEN: u64 = 4;

/// All lanes.
pub struct Rates {
    upstreams: Mutex<HashMap<String, Upstream>>,
    began: Instant,
}

/// One upstream's.
#[derive(Default)]
struct Upstream {
    /// Of all its calls: under the configured rate.
    all: Lane,
    /// By account and model: what the provider tells.
    told: HashMap<Account, Lane>,
}

/// Whose limits they are: providers count by key and by model.
pub type Account = (Option<Digest>, String);

/// A call that wants its turn.
#[derive(Clone, Debug)]
pub struct Wants {
    pub upstream: String,
    pub account: Account,
    /// What is configured for the upstream.
    pub rate: Rate,
    /// At most so many tokens.
    pub bound: u64,
    /// Of them, at most so many of input.
    pub input_bound: u64,
    /// How long it would wait. What a provider refuses for longer it is asked all the same: its own words tell more.
    pub patience: Duration,
}

/// When to ask again, and what stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Later {
    pub after: Duration,
    pub why: String,
}

/// A call's turn. Given back when this is dropped before the call has left.
pub struct Turn {
    rates: Arc<Rates>,
    wants: Wants,
    ticket: Ticket,
    /// Where the provider told its limits, and what it was counted as there.
    told: Option<(Ticket, u64)>,
    left: bool,
}

impl Default for Rates {
    fn default() -> Self {
        Rates { upstreams: Mutex::default(), began: Instant::now() }
    }
}

impl Rates {
    /// The turn of `who`, or when to ask again: then it has lined up. Whoever is the first of a line by this is
    /// returned, and has to be told.
    pub fn turn(
        self: &Arc<Self>,
        who: ConnectionId,
        wants: &Wants,
    ) -> (Result<Turn, Later>, Vec<ConnectionId>) {
        let now = self.now_ms();
        let mut upstreams = self.lock();
        let Upstream { all, told } = upstreams.entry(wants.upstream.clone()).or_default();
        all.set_rate(wants.rate);
        let mut told = told.get_mut(&wants.account);
        let likely = wants.input_bound / BYTES_A_TOKEN;
        let patience = u64::try_from(wants.patience.as_millis()).unwrap_or(u64::MAX);
        let later = |ms: u64, why: String| Later { after: Duration::from_millis(ms), why };
        let ticket =
            match (all.may_go(who, wants.bound, now), told.as_mut().map(|l| l.may_go(who, likely, now))) {
                (Err(ms), _) => {
                    all.line_up(who);
                    let next = told.and_then(|lane| lane.leave(who));
                    return (
                        Err(later(ms, format!("its rate of {}", wants.rate))),
                        next.into_iter().collect(),
                    );
                }
                (Ok(()), Some(Err(ms))) if ms <= patience => {
                    told.into_iter().for_each(|lane| lane.line_up(who));
                    let next = all.leave(who);
                    return (
                        Err(later(ms, "the rate limit that it tells".into())),
                        next.into_iter().collect(),
                    );
                }
                (Ok(()), _) => all.go(wants.bound, now),
            };
        let next = all.leave(who).into_iter().chain(told.as_mut().and_then(|lane| lane.leave(who))).collect();
        let told = told.map(|lane| (lane.go(likely, now), likely));
        let turn = Turn { rates: self.clone(), wants: wants.clone(), ticket, told, left: false };
        (Ok(turn), next)
    }

    /// `who` waits no more. Whoever is the first of a line by this is returned, and has to be told.
    pub fn leave(&self, who: ConnectionId, wants: &Wants) -> Vec<ConnectionId> {
        let mut upstreams = self.lock();
        let Some(Upstream { all, told }) = upstreams.get_mut(&wants.upstream) else { return Vec::new() };
        let told = told.get_mut(&wants.account).and_then(|lane| lane.leave(who));
        all.leave(who).into_iter().chain(told).collect()
    }

    /// The provider's answer to a call said this.
    pub fn learn(&self, wants: &Wants, levels: Levels) {
        if levels == Levels::default() {
            return;
        }
        let now = self.now_ms();
        let mut upstreams = self.lock();
        let told = &mut upstreams.entry(wants.upstream.clone()).or_default().told;
        if told.len() >= MANY {
            told.retain(|_, lane| !lane.is_idle(now));
        }
        told.entry(wants.account.clone()).or_default().tell(levels, now);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Upstream>> {
        self.upstreams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// The call leaves, or leaves once more: then it counts once more, and waits for nobody.
    pub fn leaves(&mut self) {
        if !std::mem::replace(&mut self.left, true) {
            return;
        }
        let now = self.rates.now_ms();
        if let Some(upstream) = self.rates.lock().get_mut(&self.wants.upstream) {
            upstream.all.used(self.ticket, 0);
            self.ticket = upstream.all.go(self.wants.bound, now);
        }
    }

    /// The call came to so many tokens.
    pub fn used(&self, tokens: u64) {
        if let Some(upstream) = self.rates.lock().get_mut(&self.wants.upstream) {
            upstream.all.used(self.ticket, tokens);
        }
    }

    /// It did not reach the upstream.
    pub fn never_arrived(&mut self) {
        self.left = false;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.left
            && let Some(upstream) = self.rates.lock().get_mut(&self.wants.upstream)
        {
            upstream.all.take_back(self.ticket, self.wants.bound);
            let lane = upstream.told.get_mut(&self.wants.account);
            if let (Some(lane), Some((ticket, tokens))) = (lane, self.told) {
                lane.take_back(ticket, tokens);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use outlast_core::call::rate::Level;

    use super::*;

    const A: ConnectionId = ConnectionId(1);
    const B: ConnectionId = ConnectionId(2);

    fn wants(rate: &str, model: &str) -> Wants {
        Wants {
            upstream: "openai".into(),
            account: (None, model.into()),
            rate: if rate.is_empty() { Rate::default() } else { rate.parse().unwrap() },
            bound: 10,
            input_bound: 40,
            patience: Duration::from_secs(45),
        }
    }

    #[test]
    fn a_turn_that_is_not_used_is_given_back() {
        let rates = Arc::new(Rates::default());
        let w = wants("1rpm", "m");
        let (first, _) = rates.turn(A, &w);
        let (second, _) = rates.turn(B, &w);
        assert_eq!(second.err().unwrap().why, "its rate of 1 request a minute");
        drop(first);
        let (mut third, _) = rates.turn(B, &w);
        third.as_mut().unwrap().leaves();
        drop(third);
        assert!(rates.turn(A, &w).0.is_err(), "it has left: it counts");
    }

    #[test]
    fn who_leaves_the_line_lets_the_next_be_the_first() {
        let rates = Arc::new(Rates::default());
        let w = wants("1rpm", "m");
        let (mut went, _) = rates.turn(ConnectionId(9), &w);
        went.as_mut().unwrap().leaves();
        assert!(rates.turn(A, &w).0.is_err() && rates.turn(B, &w).0.is_err());
        assert_eq!(rates.leave(A, &w), [B]);
        assert_eq!(rates.leave(B, &w), []);
    }

    #[test]
    fn what_a_provider_tells_holds_for_that_key_and_model_and_not_for_hours() {
        let rates = Arc::new(Rates::default());
        let level = |reset_ms| Some(Level { remaining: 0, limit: None, reset_ms });
        let none_left = |reset_ms| Levels { requests: level(reset_ms), ..Levels::default() };
        rates.learn(&wants("", "m"), none_left(30_000));
        let (refused, _) = rates.turn(A, &wants("", "m"));
        assert_eq!(refused.err().unwrap().why, "the rate limit that it tells");
        assert!(rates.turn(A, &wants("", "other")).0.is_ok());
        let other = Wants { account: (Some(Digest([1; 32])), "m".into()), ..wants("", "m") };
        assert!(rates.turn(A, &other).0.is_ok());
        // Longer than anybody would wait: the provider says so itself.
        rates.learn(&other, none_left(100_000));
        assert!(rates.turn(A, &other).0.is_ok());
    }
}
