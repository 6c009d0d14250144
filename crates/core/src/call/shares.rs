//! Shares: the parts of an upstream's limits that each server of a store may use.
//!
//! The shares of an upstream are one value of the store. What its servers hold never adds up to more than the limit,
//! also while servers come and go:
//! - A server takes what is free, up to an equal part of the limit.
//! - It gives up what it holds beyond its part only when it is true that it uses no more: its calls have ended, or left
//!   more than a minute ago. It begins no call beyond its part meanwhile.
//! - The share of a server that is gone stays taken for [`TAKEN_US`], because its calls may still be at the provider. A
//!   server beside which no other ever had a share is an exception: where it died, it is replaced at once.

use serde::{Deserialize, Serialize};

use crate::{
    call::Rate,
    words::{InstanceNo, Micros},
};

/// Time for which the share of a server stays taken after it was found gone: the minute for which a call counts.
pub const TAKEN_US: i64 = 60_000_000;

/// Time for which a server keeps its share where there are more servers than there is to share. Longer than the minute
/// after which a request is spent no more: who comes next has half of it at least.
pub const TURN_US: i64 = 120_000_000;

/// Limits of an upstream, parts of them, or their use. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// Calls in flight at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// Requests a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Tokens a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

/// Reads one of the three numbers of a pace.
type Of = fn(&Pace) -> Option<u64>;

impl Pace {
    /// Returns the pace of a rate and a number of calls at once.
    pub fn new(rate: Rate, calls: Option<u64>) -> Pace {
        Pace { calls, requests: rate.requests, tokens: rate.tokens }
    }

    pub fn rate(&self) -> Rate {
        Rate { requests: self.requests, tokens: self.tokens }
    }

    /// Returns whether no limit is set.
    pub fn is_unlimited(&self) -> bool {
        *self == Pace::default()
    }

    /// Makes a pace, each number by itself.
    fn each(number: impl Fn(Of) -> Option<u64>) -> Pace {
        Pace { calls: number(|p| p.calls), requests: number(|p| p.requests), tokens: number(|p| p.tokens) }
    }

    /// Returns each limit of `self`, lowered to the one of `other`. A missing one of `other` is zero.
    pub fn at_most(&self, other: &Pace) -> Pace {
        Pace::each(|of| of(self).map(|limit| limit.min(of(other).unwrap_or(0))))
    }
}

/// Part of an upstream's limits that a server may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Limits that the server keeps to now.
    pub now: Pace,
    /// Limits that the server may keep to once the others have given up what is beyond their parts.
    pub full: Pace,
}

/// Share of an upstream's limits that a server holds, as the store has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub server: InstanceNo,
    pub hold: Pace,
    /// Whether the server ever held more than nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_held: bool,
    /// Time at which the server was found gone, by the store's clock; `None` for one that lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_at: Option<Micros>,
}

/// Server that settles its share.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    pub no: InstanceNo,
    /// Instance as which the same process held its share before it had to register anew; `None`: the same instance.
    pub former: Option<InstanceNo>,
    /// Configured limits of the upstream.
    pub limit: Pace,
    /// Time by the store's clock. Does not matter to a server alone.
    pub now: Micros,
}

/// Shares of one upstream, in the order of the servers' numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shares {
    pub held: Vec<Held>,
}

impl Shares {
    /// Returns whether nobody but `server` holds anything.
    pub fn is_alone(&self, server: &Server) -> bool {
        self.held.iter().all(|h| h.server == server.no || Some(h.server) == server.former)
    }

    /// Notes which servers are gone, and frees the shares of those that have been for [`TAKEN_US`]. Servers that
    /// `is_live` does not know have to be gone: read who lives after the shares.
    pub fn bury(&mut self, is_live: impl Fn(InstanceNo) -> bool, now: Micros) {
        let mut holders = self.held.iter().filter(|held| held.has_held);
        if let (Some(only), None) = (holders.next(), holders.next())
            && only.gone_at.is_none()
            && !is_live(only.server)
        {
            // One server, which another takes the place of: nobody waits for a minute then.
            let only = only.server;
            self.held.retain(|held| held.server != only);
        }
        for held in &mut self.held {
            if held.gone_at.is_some() || !is_live(held.server) {
                // A clock that was set back lets nobody wait for longer.
                held.gone_at = Some(held.gone_at.map_or(now, |at| at.min(now)));
            }
        }
        self.held.retain(|held| held.gone_at.is_none_or(|at| now.0 - at.0 < TAKEN_US));
    }

    /// Settles the share of `server`: takes what is free of its equal part, or gives up what it does not use beyond it.
    /// Returns what the server may use once these shares are in the store.
    ///
    /// `limits_itself` lets the server use no more than the part that it is given, from then on, and returns what the
    /// server uses at that moment.
    pub fn settle(&mut self, server: &Server, limits_itself: impl FnOnce(Part) -> Pace) -> Part {
        // What was held under a former number, or by one that was found gone, is the server's only once it is written: the
        // minute after which others take it has begun.
        let own = self.held.iter().find(|h| h.server == server.no && h.gone_at.is_none());
        let before = own.map(|h| h.hold).unwrap_or_default();
        self.enter(server);
        let full = self.full(server);
        let held = self.hold(server.no);
        let used = limits_itself(Part { now: full.at_most(&before), full });
        let taken = self.taken_by_others(server.no);
        let hold = Pace::each(|of| {
            let number = |pace: &Pace| of(pace).unwrap_or(0);
            let (full, held) = (of(&full)?, number(&held));
            let free = number(&server.limit).saturating_sub(number(&taken));
            Some(match held > full {
                true => full.max(held.min(number(&used))),
                false => held.max(full.min(free)),
            })
        });
        for held in self.held.iter_mut().filter(|h| h.server == server.no) {
            held.hold = hold;
            held.has_held |= hold != hold.at_most(&Pace::default());
        }
        self.held.retain(|h| !h.hold.is_unlimited());
        Part { now: full.at_most(&hold), full }
    }

    /// Gives up the share of a server that ends, but for what it uses.
    pub fn leave(&mut self, server: InstanceNo, used: &Pace, now: Micros) {
        for held in self.held.iter_mut().filter(|h| h.server == server) {
            held.hold = held.hold.at_most(used);
            held.gone_at = Some(now);
        }
        self.held.retain(|h| h.server != server || h.hold != Pace::each(|of| of(&h.hold).map(|_| 0)));
    }

    /// Adds the server, without a share, if it is new. A process that registered anew keeps what it held.
    fn enter(&mut self, server: &Server) {
        let is_there = self.held.iter().any(|h| h.server == server.no);
        for held in &mut self.held {
            if !is_there && Some(held.server) == server.former {
                *held = Held { server: server.no, gone_at: None, ..*held };
            }
        }
        if self.held.iter().all(|h| h.server != server.no) {
            self.held.push(Held { server: server.no, hold: Pace::default(), has_held: false, gone_at: None });
        }
        for held in self.held.iter_mut().filter(|h| h.server == server.no) {
            held.gone_at = None;
            held.hold = Pace::each(|of| of(&server.limit).map(|_| of(&held.hold).unwrap_or(0)));
        }
        self.held.sort_by_key(|h| h.server);
    }

    /// Returns the equal part of `server`. Servers with low numbers get what the division leaves; where it leaves all,
    /// servers take turns.
    fn full(&self, server: &Server) -> Pace {
        Pace::each(|of| {
            let limit = of(&server.limit)?;
            let living = self.held.iter().filter(|h| h.gone_at.is_none() && of(&h.hold).is_some());
            let living: Vec<InstanceNo> = living.map(|h| h.server).collect();
            let place = living.iter().position(|no| *no == server.no)? as u64;
            let servers = living.len() as u64;
            let turn = server.now.0.div_euclid(TURN_US).unsigned_abs();
            let place = if limit < servers { (place + turn % servers) % servers } else { place };
            Some(limit / servers + u64::from(place < limit % servers))
        })
    }

    fn hold(&self, server: InstanceNo) -> Pace {
        self.held.iter().find(|h| h.server == server).map(|h| h.hold).unwrap_or_default()
    }

    fn taken_by_others(&self, server: InstanceNo) -> Pace {
        let others = || self.held.iter().filter(|h| h.server != server);
        Pace::each(|of| Some(others().filter_map(|h| of(&h.hold)).fold(0, u64::saturating_add)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: InstanceNo = InstanceNo(1);
    const B: InstanceNo = InstanceNo(2);
    const C: InstanceNo = InstanceNo(3);

    fn calls(calls: u64) -> Pace {
        Pace { calls: Some(calls), ..Pace::default() }
    }

    fn server(no: InstanceNo, limit: u64) -> Server {
        Server { no, former: None, limit: calls(limit), now: Micros(0) }
    }

    /// Settles the share of `no` of `limit` calls, of which it uses `used`. Returns what it may use before and after.
    fn settle(shares: &mut Shares, no: InstanceNo, limit: u64, used: u64) -> (u64, u64) {
        let mut before = None;
        let after = shares.settle(&server(no, limit), |part| {
            before = part.now.calls;
            calls(used)
        });
        (before.unwrap(), after.now.calls.unwrap())
    }

    fn held(shares: &Shares) -> Vec<u64> {
        shares.held.iter().map(|h| h.hold.calls.unwrap()).collect()
    }

    #[test]
    fn a_server_alone_holds_the_whole_limit_and_then_changes_nothing() {
        let mut shares = Shares::default();
        assert_eq!(settle(&mut shares, A, 5, 0), (0, 5));
        let before = shares.clone();
        assert_eq!(settle(&mut shares, A, 5, 5), (5, 5));
        assert_eq!(shares, before);
        assert!(shares.is_alone(&server(A, 5)));
        assert_eq!(settle(&mut shares, A, 3, 5), (3, 3), "a limit that was lowered");
        assert_eq!(held(&shares), [5], "five are on their way still");
    }

    #[test]
    fn who_comes_gets_what_the_others_have_given_up_and_no_more() {
        let mut shares = Shares::default();
        settle(&mut shares, A, 5, 0);
        assert_eq!(settle(&mut shares, B, 5, 0), (0, 0));
        // It begins no more than three from now on, and four are on their way.
        assert_eq!((settle(&mut shares, A, 5, 4), held(&shares)), ((3, 3), vec![4, 0]));
        assert_eq!((settle(&mut shares, B, 5, 0), held(&shares)), ((0, 1), vec![4, 1]));
        assert_eq!((settle(&mut shares, A, 5, 1), held(&shares)), ((3, 3), vec![3, 1]));
        assert_eq!((settle(&mut shares, B, 5, 1), held(&shares)), ((1, 2), vec![3, 2]));
        settle(&mut shares, C, 5, 0);
        assert_eq!((settle(&mut shares, A, 5, 0), held(&shares)), ((2, 2), vec![2, 2, 0]));
        assert_eq!((settle(&mut shares, C, 5, 0), held(&shares)), ((0, 1), vec![2, 2, 1]));
    }

    #[test]
    fn where_there_are_more_servers_than_calls_they_take_turns() {
        let mut shares = Shares::default();
        let mut settled = |turn: i64| {
            [A, B, C, A, B, C].map(|no| {
                let server = Server { now: Micros(turn * TURN_US), ..server(no, 2) };
                shares.settle(&server, |_| calls(0)).now.calls.unwrap()
            })
        };
        assert_eq!(settled(0)[3..], [1, 1, 0]);
        assert_eq!(settled(1)[3..], [1, 0, 1]);
        assert_eq!(settled(2)[3..], [0, 1, 1]);
        assert_eq!(settled(3)[3..], [1, 1, 0]);
    }

    #[test]
    fn the_share_of_a_server_that_is_gone_stays_taken_for_a_minute() {
        let mut shares = Shares::default();
        settle(&mut shares, A, 4, 0);
        settle(&mut shares, B, 4, 0);
        settle(&mut shares, A, 4, 0);
        settle(&mut shares, B, 4, 0);
        let gone = Micros(7);
        let mut after = |us: i64| {
            shares.bury(|no| no == B, Micros(gone.0 + us));
            (settle(&mut shares, B, 4, 2), held(&shares))
        };
        assert_eq!(after(0), ((2, 2), vec![2, 2]));
        assert_eq!(after(TAKEN_US - 1), ((2, 2), vec![2, 2]));
        assert_eq!(after(TAKEN_US), ((2, 4), vec![4]));
    }

    #[test]
    fn a_server_alone_that_died_is_replaced_at_once_and_one_that_was_not_alone_is_not() {
        let mut shares = Shares::default();
        settle(&mut shares, A, 4, 0);
        // Its successor comes before it is found dead.
        assert_eq!(settle(&mut shares, B, 4, 0).1, 0);
        shares.bury(|no| no == B, Micros(0));
        assert_eq!(settle(&mut shares, B, 4, 0).1, 4);
        settle(&mut shares, C, 4, 0);
        settle(&mut shares, B, 4, 0);
        settle(&mut shares, C, 4, 0);
        shares.bury(|no| no == C, Micros(0));
        assert_eq!(settle(&mut shares, C, 4, 0).1, 2);
        // One that ended told what its calls of the last minute take.
        let mut shares = Shares::default();
        settle(&mut shares, A, 4, 0);
        shares.leave(A, &calls(1), Micros(0));
        shares.bury(|_| false, Micros(1));
        assert_eq!(settle(&mut shares, B, 4, 0).1, 3);
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_no_share_for_longer() {
        let mut shares = Shares::default();
        settle(&mut shares, A, 4, 0);
        settle(&mut shares, B, 4, 0);
        settle(&mut shares, A, 4, 0);
        settle(&mut shares, B, 4, 0);
        shares.bury(|_| false, Micros(100 * TAKEN_US));
        shares.bury(|_| false, Micros(0));
        shares.bury(|_| false, Micros(TAKEN_US));
        assert_eq!(shares, Shares::default());
    }

    /// Bug: a server that had been declared dead used its old share as soon as it had a new number.
    /// Consequence: its calls left at the end of the minute after which others took that share: seven for a limit of six.
    /// Cause: the share counted as its own before it was written that it had moved to the new number.
    #[test]
    fn a_process_that_registers_anew_keeps_its_share_and_uses_it_when_that_is_written() {
        let mut shares = Shares::default();
        settle(&mut shares, A, 4, 0);
        settle(&mut shares, B, 4, 0);
        settle(&mut shares, A, 4, 0);
        settle(&mut shares, B, 4, 0);
        shares.bury(|no| no == B, Micros(0));
        let again = Server { former: Some(A), ..server(C, 4) };
        let after = shares.settle(&again, |part| {
            assert_eq!(part.now, calls(0), "not before that is written");
            part.now
        });
        assert_eq!(after.now, calls(2));
        assert_eq!(
            shares.held.iter().map(|h| (h.server, h.gone_at)).collect::<Vec<_>>(),
            [(B, None), (C, None)]
        );
    }

    #[test]
    fn who_ends_keeps_what_it_uses_and_who_uses_nothing_is_forgotten() {
        let mut shares = Shares::default();
        settle(&mut shares, A, 4, 0);
        shares.leave(A, &calls(1), Micros(0));
        assert_eq!(settle(&mut shares, B, 4, 0), (0, 3));
        shares.leave(B, &calls(0), Micros(0));
        assert_eq!(held(&shares), [1]);
    }

    #[test]
    fn a_limit_is_divided_among_those_that_have_it() {
        let mut shares = Shares::default();
        let both = Pace { calls: Some(4), requests: Some(60), tokens: None };
        let of_both = Server { limit: both, ..server(A, 4) };
        shares.settle(&of_both, |_| Pace::default());
        settle(&mut shares, B, 4, 0);
        let part = shares.settle(&of_both, |_| Pace::default());
        assert_eq!(part.now, Pace { calls: Some(2), requests: Some(60), tokens: None });
        // Without a limit it takes part no more.
        shares.settle(&Server { limit: Pace::default(), ..of_both }, |_| both);
        assert_eq!(shares.held.iter().map(|h| h.server).collect::<Vec<_>>(), [B]);
    }

    #[test]
    fn shares_are_stored_as_they_are_read() {
        let mut shares = Shares::default();
        settle(&mut shares, A, 4, 0);
        settle(&mut shares, B, 4, 0);
        shares.leave(B, &calls(0), Micros(9));
        settle(&mut shares, B, 4, 0);
        shares.bury(|no| no == A, Micros(9));
        let text = serde_json::to_string(&shares).unwrap();
        assert_eq!(
            text,
            r#"{"held":[{"server":1,"hold":{"calls":4},"has_held":true},{"server":2,"hold":{"calls":0},"gone_at":9}]}"#
        );
        assert_eq!(serde_json::from_str::<Shares>(&text).unwrap(), shares);
    }
}
