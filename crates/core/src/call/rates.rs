//! Turns at upstreams with limits on requests and tokens per minute, over all runs of a process.
//!
//! A call waits for its turn before it is admitted. It then holds neither a reservation nor a transaction, a client
//! that leaves is dropped without a trace, and recorded answers are replayed without a turn.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
};

use crate::{
    call::{
        ConnectionId, Levels, Rate,
        rate::{Lane, Ticket},
        shares::{Pace, Part},
    },
    words::{Cause, Digest},
};

/// Number of lanes of one upstream beyond which idle lanes are dropped.
const MANY: usize = 256;

/// Assumed bytes per token of a text, close to a provider's own count.
const BYTES_A_TOKEN: u64 = 4;

/// Lanes of all upstreams: each a line of calls that share rate limits.
#[derive(Debug, Default)]
pub struct Rates {
    upstreams: HashMap<String, Upstream>,
    /// Parts of the upstreams' limits that this process may use; `None`: it may use the limits whole.
    parts: Option<Arc<Parts>>,
}

/// Parts of upstreams' limits, by the upstream's name. An upstream that is not there has a part of zero.
pub type Parts = BTreeMap<String, Part>;

#[derive(Debug, Default)]
struct Upstream {
    /// All calls of the upstream, under the configured rate.
    all: Lane,
    /// Calls of each account, under the limits that the provider reports or enforces.
    told: HashMap<Account, Lane>,
}

/// Digest of the API key, and model: providers count their rate limits for each such pair.
pub type Account = (Option<Digest>, String);

/// Share of its upstream's requests and tokens per minute that a call takes.
#[derive(Clone, Debug, Default)]
pub struct Wants {
    pub upstream: String,
    /// Digest of the upstream's address and of the configured key, if that is sent: an outage concerns the pair. A call
    /// with a new key does not wait for the old one.
    pub way: Digest,
    /// Digest of the request, the same whenever it is asked.
    pub request: Digest,
    /// Whether a batch's item asks.
    pub is_of_item: bool,
    pub account: Account,
    /// Rate configured for the upstream.
    pub rate: Rate,
    /// Largest number of tokens that the call can use, input and output together.
    pub bound: u64,
    /// Largest number of input tokens that the call can use; part of `bound`.
    pub input_bound: u64,
    /// Longest time that the call waits for its turn, in milliseconds. If a provider refuses calls for
    /// longer, the call is sent all the same: the provider's own error says more.
    pub patience_ms: u64,
}

/// Time at which a call asks for its turn again, and the reason why it has none now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Later {
    pub after_ms: u64,
    pub why: Why,
}

impl Later {
    /// Returns whether the call is held because of an outage, and not by a rate.
    pub fn is_outage(&self) -> bool {
        matches!(self.why, Why::Outage(_))
    }
}

/// Reason why a call has to wait before it may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Configured(Rate),
    /// This server's share of the configured rate.
    Share(Rate),
    Told,
    /// The login's plan is close to a ceiling, and the answers of calls in flight have yet to report what
    /// they cost.
    Plan,
    /// The upstream has an outage, and another call is its probe.
    Outage(Cause),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Configured(rate) => write!(f, "its rate of {rate}"),
            Why::Share(rate) => write!(f, "this server's share of its rate: {rate}"),
            Why::Told => f.write_str("the rate limit that it tells"),
            Why::Plan => f.write_str(
                "the plan of its login is close to a ceiling, and calls in flight have yet to tell what they take",
            ),
            Why::Outage(cause) => write!(f, "it {cause}"),
        }
    }
}

/// A call's turn at its upstream: its share of the requests and tokens per minute. Ends in [`Rates::give_back`] or
/// [`Rates::over`].
#[derive(Debug)]
#[must_use = "a turn that is dropped counts for a minute"]
pub struct Turn {
    wants: Arc<Wants>,
    ticket: Ticket,
    /// Ticket and counted tokens in the lane of the account.
    told: (Ticket, u64),
    /// Time at which the newest try left; `None` before.
    left_at_ms: Option<u64>,
}

impl Rates {
    /// Returns the turn of `who`, or else puts it in line and returns the time to ask again. Also returns the
    /// connections that became the first of a line: the caller feeds them `MayRetry`.
    pub fn turn(
        &mut self,
        who: ConnectionId,
        wants: &Arc<Wants>,
        now_ms: u64,
    ) -> (Result<Turn, Later>, Vec<ConnectionId>) {
        let (rate, full) = self.rates(wants);
        let Upstream { all, told } = self.upstream(&wants.upstream, now_ms);
        all.set_rate(rate, full);
        let told = told.entry(wants.account.clone()).or_default();
        let likely = wants.input_bound / BYTES_A_TOKEN;
        let later = |after_ms, why| Err(Later { after_ms, why });
        match (all.may_go(who, wants.bound, now_ms), told.may_go(who, likely, now_ms)) {
            (Err(ms), _) => {
                all.line_up(who);
                let why = if rate == wants.rate { Why::Configured(rate) } else { Why::Share(rate) };
                (later(ms, why), told.leave(who).into_iter().collect())
            }
            (Ok(()), Err(ms)) if ms <= wants.patience_ms => {
                told.line_up(who);
                (later(ms, Why::Told), all.leave(who).into_iter().collect())
            }
            (Ok(()), _) => {
                let ticket = all.go(wants.bound, now_ms);
                let next = all.leave(who).into_iter().chain(told.leave(who)).collect();
                let told = (told.go(likely, now_ms), likely);
                (Ok(Turn { wants: wants.clone(), ticket, told, left_at_ms: None }), next)
            }
        }
    }

    /// Removes `who` from its lines. Returns the connections that became the first of a line: the caller feeds them
    /// `MayRetry`.
    #[must_use = "those returned have to be told `MayRetry`"]
    pub fn leave(&mut self, who: ConnectionId, wants: &Wants) -> Vec<ConnectionId> {
        let Some(Upstream { all, told }) = self.upstreams.get_mut(&wants.upstream) else { return Vec::new() };
        let told = told.get_mut(&wants.account).and_then(|lane| lane.leave(who));
        all.leave(who).into_iter().chain(told).collect()
    }

    /// Records the limits that the provider reported in its answer to the turn's call.
    pub fn learn(&mut self, turn: &Turn, levels: Levels, now_ms: u64) {
        let lane =
            self.upstreams.get_mut(&turn.wants.upstream).and_then(|u| u.told.get_mut(&turn.wants.account));
        if let (Some(lane), Some(left_ms)) = (lane, turn.left_at_ms) {
            lane.tell(levels, left_ms, now_ms);
        }
    }

    /// Notes that the call is sent upstream. A call that is sent once more is counted once more, without waiting.
    pub fn leaves(&mut self, turn: &mut Turn, now_ms: u64) {
        let Some(Upstream { all, told }) = self.upstreams.get_mut(&turn.wants.upstream) else { return };
        let told = told.entry(turn.wants.account.clone()).or_default();
        if turn.left_at_ms.replace(now_ms).is_some() {
            all.used(turn.ticket, 0);
            turn.ticket = all.go(turn.wants.bound, now_ms);
            turn.told.0 = told.go(turn.told.1, now_ms);
        }
        all.leaves(turn.ticket, now_ms);
        told.leaves(turn.told.0, now_ms);
    }

    /// Ends a turn with the tokens that the call used. `None`: the usage is unknown, and the call keeps counting with
    /// its bound.
    pub fn over(&mut self, turn: Turn, tokens: Option<u64>) {
        if turn.left_at_ms.is_none() {
            self.give_back(turn);
        } else if let (Some(tokens), Some(upstream)) = (tokens, self.upstreams.get_mut(&turn.wants.upstream))
        {
            upstream.all.used(turn.ticket, tokens);
        }
    }

    /// Uncounts a call that did not reach its upstream.
    pub fn give_back(&mut self, turn: Turn) {
        let Some(upstream) = self.upstreams.get_mut(&turn.wants.upstream) else { return };
        upstream.all.take_back(turn.ticket, turn.wants.bound);
        if let Some(lane) = upstream.told.get_mut(&turn.wants.account) {
            lane.take_back(turn.told.0, turn.told.1);
        }
    }

    /// Lets this process use these parts of the upstreams' limits from now on.
    pub fn share(&mut self, parts: Arc<Parts>) {
        self.parts = Some(parts);
    }

    /// Returns the requests and tokens that count against the rate of an upstream now.
    pub fn spent(&self, upstream: &str, now_ms: u64) -> (u64, u64) {
        self.upstreams.get(upstream).map(|upstream| upstream.all.spent(now_ms)).unwrap_or_default()
    }

    /// Returns the rate that holds for a call now, and the one that is to be had.
    fn rates(&self, wants: &Wants) -> (Rate, Rate) {
        let Some(parts) = &self.parts else { return (wants.rate, wants.rate) };
        let part = parts.get(&wants.upstream).copied().unwrap_or_default();
        let whole = Pace::new(wants.rate, None);
        (whole.at_most(&part.now).rate(), whole.at_most(&part.full).rate())
    }

    fn upstream(&mut self, name: &str, now_ms: u64) -> &mut Upstream {
        let upstream = self.upstreams.entry(name.to_owned()).or_default();
        if upstream.told.len() >= MANY {
            upstream.told.retain(|_, lane| !lane.is_idle(now_ms));
        }
        upstream
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::rate::Level;

    const A: ConnectionId = ConnectionId(1);
    const B: ConnectionId = ConnectionId(2);

    fn wants(rate: &str, model: &str) -> Arc<Wants> {
        Arc::new(Wants {
            upstream: "openai".into(),
            way: Digest([0; 32]),
            request: Digest([0; 32]),
            is_of_item: false,
            account: (None, model.into()),
            rate: if rate.is_empty() { Rate::default() } else { rate.parse().unwrap() },
            bound: 10,
            input_bound: 40,
            patience_ms: 45_000,
        })
    }

    #[test]
    fn a_turn_that_is_not_used_is_given_back() {
        let mut rates = Rates::default();
        let w = wants("1rpm", "m");
        let first = rates.turn(A, &w, 0).0.unwrap();
        let second = rates.turn(B, &w, 0).0;
        assert_eq!(second.err().unwrap().why.to_string(), "its rate of 1 request a minute");
        rates.give_back(first);
        let mut third = rates.turn(B, &w, 0).0.unwrap();
        rates.leaves(&mut third, 0);
        rates.over(third, None);
        assert!(rates.turn(A, &w, 0).0.is_err(), "it has left: it counts");
    }

    #[test]
    fn a_server_keeps_to_its_share_and_without_one_it_waits() {
        let mut rates = Rates::default();
        let w = wants("4rpm", "m");
        rates.share(Arc::default());
        let refused = rates.turn(A, &w, 0).0.err().unwrap();
        assert_eq!(refused.why.to_string(), "this server's share of its rate: 0 requests a minute");
        let pace = |requests| Pace { requests: Some(requests), ..Pace::default() };
        rates.share(Arc::new([("openai".into(), Part { now: pace(1), full: pace(2) })].into()));
        let mut turn = rates.turn(A, &w, 0).0.unwrap();
        rates.leaves(&mut turn, 0);
        assert!(rates.turn(B, &w, 0).0.is_err());
        assert_eq!((rates.spent("openai", 0), rates.spent("gemini", 0)), ((1, 10), (0, 0)));
        assert!(rates.turn(B, &wants("", "m"), 0).0.is_ok(), "no limit has no shares");
    }

    #[test]
    fn who_leaves_the_line_lets_the_next_be_the_first() {
        let mut rates = Rates::default();
        let w = wants("1rpm", "m");
        let mut went = rates.turn(ConnectionId(9), &w, 0).0.unwrap();
        rates.leaves(&mut went, 0);
        assert!(rates.turn(A, &w, 0).0.is_err() && rates.turn(B, &w, 0).0.is_err());
        assert_eq!(rates.leave(A, &w), [B]);
        assert_eq!(rates.leave(B, &w), []);
    }

    #[test]
    fn each_try_of_a_call_counts_and_only_the_last_one_has_its_tokens() {
        let mut rates = Rates::default();
        let w = wants("2rpm,100tpm", "m");
        let mut turn = rates.turn(A, &w, 0).0.unwrap();
        rates.leaves(&mut turn, 0);
        rates.leaves(&mut turn, 1_000);
        rates.over(turn, Some(95));
        let later = |after_ms| Later { after_ms, why: Why::Configured(w.rate) };
        assert_eq!(rates.turn(B, &w, 2_000).0.err(), Some(later(59_000)), "its 95 tokens, at the second try");
    }

    #[test]
    fn what_a_provider_tells_holds_for_that_key_and_model_and_not_for_hours() {
        let mut rates = Rates::default();
        let level = |reset_ms| Some(Level { remaining: 0, limit: None, reset_ms });
        let reports = |rates: &mut Rates, wants: &Arc<Wants>, reset_ms| {
            let mut turn = rates.turn(B, wants, 0).0.unwrap();
            rates.leaves(&mut turn, 0);
            rates.learn(&turn, Levels { requests: level(reset_ms), ..Levels::default() }, 0);
            rates.over(turn, None);
        };
        reports(&mut rates, &wants("", "m"), 30_000);
        let refused = rates.turn(A, &wants("", "m"), 0).0;
        assert_eq!(refused.err().unwrap().why.to_string(), "the rate limit that it tells");
        assert!(rates.turn(A, &wants("", "other"), 0).0.is_ok());
        let other =
            Arc::new(Wants { account: (Some(Digest([1; 32])), "m".into()), ..(*wants("", "m")).clone() });
        assert!(rates.turn(A, &other, 0).0.is_ok());
        // Longer than anybody would wait: the provider says so itself.
        reports(&mut rates, &other, 100_000);
        assert!(rates.turn(A, &other, 0).0.is_ok());
    }
}
