//! Rate limits of an upstream: requests and tokens per minute, and which call goes next.
//!
//! A lane is shared by calls: all calls of one upstream under a configured rate, or all of one account's model under
//! the limits in the provider's answers. Pure: the time is passed in, in milliseconds from any start.

use std::{collections::VecDeque, fmt, str::FromStr};

use crate::{
    call::{ConnectionId, throttle::Throttle},
    words::BadText,
};

const MINUTE_MS: u64 = 60_000;

/// Largest numbers of requests and tokens in any minute. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    pub requests: Option<u64>,
    pub tokens: Option<u64>,
}

impl Rate {
    pub fn is_any(&self) -> bool {
        *self == Rate::default()
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = [(self.requests, "request"), (self.tokens, "token")];
        let some = |(n, what): &(Option<u64>, &str)| {
            n.map(|n| format!("{n} {what}{}", if n == 1 { "" } else { "s" }))
        };
        let said: Vec<String> = each.iter().filter_map(some).collect();
        write!(f, "{} a minute", said.join(" and "))
    }
}

impl FromStr for Rate {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Rate, BadText> {
        let wanted = "for example 500rpm, 200000tpm or 500rpm,200000tpm: requests and tokens a minute";
        let bad = || BadText::new("a rate", text, wanted);
        let mut rate = Rate::default();
        for part in text.split(',').map(str::trim) {
            let (slot, number) = if let Some(number) = part.strip_suffix("rpm") {
                (&mut rate.requests, number)
            } else if let Some(number) = part.strip_suffix("tpm") {
                (&mut rate.tokens, number)
            } else {
                return Err(bad());
            };
            let number: u64 = number.trim().parse().map_err(|_| bad())?;
            if number == 0 || slot.replace(number).is_some() {
                return Err(bad());
            }
        }
        Ok(rate)
    }
}

/// State of one limit, as a provider reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub remaining: u64,
    pub limit: Option<u64>,
    /// Milliseconds from the report until the whole limit is available again.
    pub reset_ms: u64,
}

/// State of a lane's limits, as a provider reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    pub requests: Option<Level>,
    pub tokens: Option<Level>,
    /// Milliseconds that a refusal (429) asks to wait, 0 if it names no time; `None` if the call was not refused for a rate.
    pub refuses_ms: Option<u64>,
}

/// Handle of a call in a lane, by which the tokens that the call was counted with are corrected or taken
/// back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

#[derive(Clone, Copy, Debug)]
struct Went {
    ticket: Ticket,
    at_ms: u64,
    tokens: u64,
}

/// Pause after which a call asks again in a lane whose rate allows nothing now, in milliseconds.
const CLOSED_MS: u64 = 1_000;

/// Lane: a line of calls that share rate limits. See the module.
#[derive(Debug, Default)]
pub struct Lane {
    rate: Rate,
    /// Rate that is to be had once other servers have given up what is beyond their shares.
    full: Rate,
    /// Calls that left within the last minute, oldest first.
    went: VecDeque<Went>,
    /// Calls that may go and have not left yet, however long ago they were admitted. Each counts as if it left now.
    leaving: Vec<Went>,
    tickets: u64,
    levels: Levels,
    told_at_ms: u64,
    /// Number of requests counted since the provider last reported its rate limit.
    requests_since: u64,
    tokens_since: u64,
    throttle: Throttle,
    /// Waiting connections, next one first: one of each run, so that no run overtakes the others.
    line: VecDeque<ConnectionId>,
}

impl Lane {
    /// Sets the rate that holds now, and the one that is to be had: a call for which only the first one is too small
    /// waits.
    pub fn set_rate(&mut self, rate: Rate, full: Rate) {
        (self.rate, self.full) = (rate, full);
    }

    /// Returns the requests and tokens that count against the rate now.
    pub fn spent(&self, now_ms: u64) -> (u64, u64) {
        let counted = self.counted(now_ms).filter(|(at_ms, _)| at_ms + MINUTE_MS > now_ms);
        counted.fold((0, 0), |(requests, sum), (_, tokens)| (requests + 1, tokens.saturating_add(sum)))
    }

    /// Records what the provider reported now of its limits, in the answer to a call that left at `left_ms`.
    ///
    /// Levels come first: a refusal that they explain says nothing more.
    pub fn tell(&mut self, levels: Levels, left_ms: u64, now_ms: u64) {
        let reported = [levels.requests, levels.tokens];
        if let Some(wait_ms) = levels.refuses_ms
            && reported.iter().flatten().all(|level| level.remaining > 0)
        {
            self.throttle.refused(left_ms, wait_ms, now_ms);
        }
        if reported.iter().any(Option::is_some) {
            self.levels = levels;
            self.told_at_ms = now_ms;
            (self.requests_since, self.tokens_since) = (0, 0);
        }
    }

    /// Checks whether `who` may be sent now with this many tokens. The error is the number of milliseconds
    /// until `who` may ask again.
    ///
    /// A call that needs more than a whole minute's tokens is sent when no other call counts.
    pub fn may_go(&mut self, who: ConnectionId, tokens: u64, now_ms: u64) -> Result<(), u64> {
        let ready_ms = self.ready_at(tokens, now_ms).saturating_sub(now_ms);
        let is_next = self.line.front().is_none_or(|first| *first == who);
        if ready_ms == 0 && is_next { Ok(()) } else { Err(ready_ms) }
    }

    /// Counts a call of `tokens` that is about to be sent. The ticket names the call in later corrections.
    pub fn go(&mut self, tokens: u64, now_ms: u64) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        if !self.rate.is_any() {
            self.leaving.push(Went { ticket, at_ms: now_ms, tokens });
        }
        self.requests_since += 1;
        self.tokens_since = self.tokens_since.saturating_add(tokens);
        self.throttle.goes(now_ms);
        ticket
    }

    /// Notes that the call is sent upstream: the minute for which it counts begins.
    pub fn leaves(&mut self, ticket: Ticket, now_ms: u64) {
        self.throttle.leaves(now_ms);
        if let Some(at) = self.leaving.iter().position(|w| w.ticket == ticket) {
            let leaving = self.leaving.swap_remove(at);
            self.went.push_back(Went { at_ms: now_ms, ..leaving });
        }
    }

    /// Replaces the tokens that a sent call was counted with by the number that it used.
    pub fn used(&mut self, ticket: Ticket, tokens: u64) {
        if let Some(went) = self.went.iter_mut().find(|w| w.ticket == ticket) {
            went.tokens = tokens;
        }
    }

    /// Uncounts a call that was not sent after all. `tokens` is the number that it was counted with.
    pub fn take_back(&mut self, ticket: Ticket, tokens: u64) {
        self.went.retain(|w| w.ticket != ticket);
        self.leaving.retain(|w| w.ticket != ticket);
        self.requests_since = self.requests_since.saturating_sub(1);
        self.tokens_since = self.tokens_since.saturating_sub(tokens);
        self.throttle.take_back();
    }

    /// Adds a connection to the line, unless it is there already.
    pub fn line_up(&mut self, who: ConnectionId) {
        if !self.line.contains(&who) {
            self.line.push_back(who);
        }
    }

    /// Removes a connection from the line. Returns the new first one, which the caller feeds `MayRetry`; `None` if that
    /// has not changed.
    #[must_use = "whoever is returned has to be told"]
    pub fn leave(&mut self, who: ConnectionId) -> Option<ConnectionId> {
        let at = self.line.iter().position(|w| *w == who)?;
        self.line.remove(at);
        self.line.front().copied().filter(|_| at == 0)
    }

    /// Returns whether the lane can be dropped: nobody waits in it, and no limit that a provider reported is still in
    /// force.
    pub fn is_idle(&self, now_ms: u64) -> bool {
        let over = |level: Option<Level>| level.is_none_or(|l| now_ms >= self.told_at_ms + 2 * l.reset_ms);
        self.line.is_empty()
            && self.throttle.is_idle(now_ms)
            && over(self.levels.requests)
            && over(self.levels.tokens)
    }

    fn ready_at(&mut self, tokens: u64, now_ms: u64) -> u64 {
        while self.went.front().is_some_and(|w| w.at_ms + MINUTE_MS <= now_ms) {
            self.went.pop_front();
        }
        [
            self.requests_at(now_ms),
            self.tokens_at(tokens, now_ms),
            self.throttle.ready_at(),
            self.level_at(self.levels.requests, 1, self.requests_since),
            self.level_at(self.levels.tokens, tokens, self.tokens_since),
        ]
        .into_iter()
        .fold(0, u64::max)
    }

    /// Returns the time (monotonic milliseconds) and tokens of each call that counts against the rate now,
    /// oldest first.
    fn counted(&self, now_ms: u64) -> impl Iterator<Item = (u64, u64)> {
        let leaving = self.leaving.iter().map(move |w| (now_ms, w.tokens));
        self.went.iter().map(|w| (w.at_ms, w.tokens)).chain(leaving)
    }

    fn requests_at(&self, now_ms: u64) -> u64 {
        let Some(limit) = self.rate.requests else { return 0 };
        if limit == 0 {
            return now_ms + CLOSED_MS;
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let beyond = (self.went.len() + self.leaving.len()).checked_sub(limit);
        beyond.and_then(|n| self.counted(now_ms).nth(n)).map_or(0, |(at_ms, _)| at_ms + MINUTE_MS)
    }

    fn tokens_at(&self, tokens: u64, now_ms: u64) -> u64 {
        let Some(limit) = self.rate.tokens else { return 0 };
        if limit == 0 || (tokens > limit && self.full.tokens.is_some_and(|full| limit < full)) {
            return now_ms + CLOSED_MS;
        }
        let room_for = limit.saturating_sub(tokens.min(limit));
        let mut sum: u64 = self.counted(now_ms).map(|(_, tokens)| tokens).sum();
        let mut at = 0;
        for (at_ms, tokens) in self.counted(now_ms) {
            if sum <= room_for {
                break;
            }
            sum -= tokens;
            at = at_ms + MINUTE_MS;
        }
        at
    }

    /// Returns the time at which the wanted amount of a level is available, beyond what went since the report. The
    /// level refills evenly up to its limit; if the limit is unknown, at least one is available at the reset. A report
    /// older than two resets is ignored.
    fn level_at(&self, level: Option<Level>, wanted: u64, since: u64) -> u64 {
        let Some(Level { remaining, limit, reset_ms }) = level else { return 0 };
        let most = limit.unwrap_or(1).max(remaining);
        let wanted = wanted.min(most).saturating_add(since);
        let missing = wanted.saturating_sub(remaining);
        if missing == 0 {
            return 0;
        }
        let gone = most - remaining;
        if missing > gone {
            return self.told_at_ms + 2 * reset_ms;
        }
        let evenly = (u128::from(reset_ms) * u128::from(missing)).div_ceil(u128::from(gone));
        let after = limit.and_then(|_| u64::try_from(evenly).ok()).unwrap_or(reset_ms);
        self.told_at_ms + after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ConnectionId = ConnectionId(1);
    const B: ConnectionId = ConnectionId(2);

    fn lane(requests: Option<u64>, tokens: Option<u64>) -> Lane {
        let mut lane = Lane::default();
        lane.set_rate(Rate { requests, tokens }, Rate { requests, tokens });
        lane
    }

    /// Counts a call that leaves at once.
    fn leave(lane: &mut Lane, tokens: u64, now_ms: u64) -> Ticket {
        let ticket = lane.go(tokens, now_ms);
        lane.leaves(ticket, now_ms);
        ticket
    }

    #[test]
    fn a_rate_is_read_and_what_is_none_is_told_apart() {
        let rate = |requests, tokens| Ok(Rate { requests, tokens });
        for (text, wanted) in [
            ("500rpm", rate(Some(500), None)),
            ("200000tpm", rate(None, Some(200_000))),
            ("500rpm,200000tpm", rate(Some(500), Some(200_000))),
            ("7 tpm, 1 rpm", rate(Some(1), Some(7))),
        ] {
            assert_eq!(text.parse::<Rate>(), wanted, "{text}");
        }
        for bad in ["", "500", "0rpm", "-1rpm", "1.5rpm", "5rpm,5rpm", "5rps", "5rpm,"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad:?}");
        }
        assert_eq!(
            Rate { requests: Some(5), tokens: Some(9) }.to_string(),
            "5 requests and 9 tokens a minute"
        );
    }

    #[test]
    fn in_no_minute_are_there_more_requests_than_the_rate() {
        let mut lane = lane(Some(3), None);
        let mut went: Vec<u64> = Vec::new();
        for now in (0..200_000).step_by(700) {
            if lane.may_go(A, 1, now).is_ok() {
                leave(&mut lane, 1, now);
                went.push(now);
            }
        }
        assert!(went.len() >= 9);
        assert!(went.windows(4).all(|w| w[3] - w[0] >= MINUTE_MS), "{went:?}");
    }

    #[test]
    fn who_may_not_go_is_told_when_to_ask_again() {
        let mut lane = lane(Some(2), Some(100));
        leave(&mut lane, 60, 1_000);
        assert_eq!(lane.may_go(A, 40, 2_000), Ok(()));
        assert_eq!(lane.may_go(A, 41, 2_000), Err(59_000));
        let second = leave(&mut lane, 10, 2_000);
        assert_eq!(lane.may_go(A, 1, 5_000), Err(56_000), "two requests went");
        lane.take_back(second, 10);
        assert_eq!(lane.may_go(A, 1, 5_000), Ok(()));
        // More than a minute's tokens waits until nothing else went.
        assert_eq!(lane.may_go(A, 1_000, 5_000), Err(56_000));
        assert_eq!(lane.may_go(A, 1_000, 61_000), Ok(()));
    }

    // Bug: a call's minute began when it was admitted, not when it left.
    // Consequence: calls that waited for a free connection left in one minute with those admitted after them, more
    // than the rate allows. Cause: only further tries were counted from their leaving.
    #[test]
    fn what_leaves_late_counts_from_its_leaving() {
        let mut lane = lane(Some(2), None);
        let late = lane.go(1, 0);
        leave(&mut lane, 1, 0);
        assert_eq!(lane.may_go(A, 1, 59_999), Err(1));
        leave(&mut lane, 1, 60_000);
        assert_eq!(lane.may_go(A, 1, 60_500), Err(59_500), "the late one has not left yet, and counts");
        lane.leaves(late, 60_500);
        assert_eq!(lane.may_go(A, 1, 119_999), Err(1));
        assert_eq!(lane.may_go(A, 1, 120_000), Ok(()));
    }

    #[test]
    fn what_a_call_used_counts_and_not_what_it_was_bound_to() {
        let mut lane = lane(None, Some(100));
        let first = leave(&mut lane, 100, 0);
        assert_eq!(lane.may_go(A, 50, 10), Err(59_990));
        lane.used(first, 20);
        assert_eq!(lane.may_go(A, 50, 10), Ok(()));
        lane.used(first, 60);
        assert_eq!(lane.may_go(A, 50, 10), Err(59_990));
    }

    #[test]
    fn in_a_share_that_is_not_whole_yet_waits_what_is_too_large_for_it() {
        let tokens = |n| Rate { requests: None, tokens: Some(n) };
        let mut lane = Lane::default();
        lane.set_rate(tokens(40), tokens(100));
        assert_eq!((lane.may_go(A, 40, 0), lane.may_go(A, 41, 0)), (Ok(()), Err(CLOSED_MS)));
        lane.set_rate(tokens(100), tokens(100));
        assert_eq!(lane.may_go(A, 500, 0), Ok(()), "it would never go");
        lane.set_rate(tokens(0), tokens(0));
        assert_eq!(lane.may_go(A, 1, 0), Err(CLOSED_MS));
        let requests = Rate { requests: Some(0), tokens: None };
        lane.set_rate(requests, requests);
        assert_eq!(lane.may_go(A, 1, 0), Err(CLOSED_MS));
    }

    #[test]
    fn what_counts_is_what_left_within_a_minute_and_what_is_about_to_leave() {
        let mut lane = lane(Some(9), None);
        leave(&mut lane, 5, 0);
        leave(&mut lane, 7, 1_000);
        lane.go(9, 1_000);
        assert_eq!(
            [1_000, 59_999, 60_000, 100_000].map(|ms| lane.spent(ms)),
            [(3, 21), (3, 21), (2, 16), (1, 9)]
        );
    }

    #[test]
    fn the_first_in_the_line_goes_first() {
        let mut lane = lane(Some(1), None);
        leave(&mut lane, 1, 0);
        lane.line_up(A);
        lane.line_up(B);
        lane.line_up(A);
        assert_eq!(lane.may_go(B, 1, 60_000), Err(0), "there is room, and it is not its turn");
        assert_eq!(lane.may_go(A, 1, 60_000), Ok(()));
        assert_eq!(lane.leave(A), Some(B));
        assert_eq!(lane.may_go(B, 1, 60_000), Ok(()));
        assert_eq!((lane.leave(B), lane.leave(B)), (None, None));
    }

    #[test]
    fn what_the_provider_says_is_left_is_kept_to() {
        let level = |remaining, limit| Some(Level { remaining, limit, reset_ms: 60_000 });
        let check = |levels: Levels, tokens, now, wanted: Result<(), u64>| {
            let mut lane = Lane::default();
            lane.tell(levels, 0, 1_000);
            assert_eq!(lane.may_go(A, tokens, now), wanted, "{levels:?} {tokens} {now}");
        };
        let requests = |l| Levels { requests: l, ..Levels::default() };
        let tokens = |l| Levels { tokens: l, ..Levels::default() };
        check(requests(level(1, None)), 0, 1_000, Ok(()));
        check(requests(level(0, None)), 0, 1_000, Err(60_000));
        check(requests(level(0, None)), 0, 61_000, Ok(()));
        // With its limit known, it comes back bit by bit: 60 in 60 s.
        check(requests(level(0, Some(60))), 0, 1_000, Err(1_000));
        check(tokens(level(100, Some(700))), 100, 1_000, Ok(()));
        check(tokens(level(100, Some(700))), 400, 1_000, Err(30_000));
        // More than there ever is waits for all there is.
        check(tokens(level(100, Some(700))), 9_000, 1_000, Err(60_000));
        // A refusal alone may be a stray one; beside a level that is used up it is none.
        check(Levels { refuses_ms: Some(5_000), ..Levels::default() }, 1, 2_000, Ok(()));
        check(Levels { refuses_ms: Some(5_000), ..requests(level(0, None)) }, 1, 2_000, Err(59_000));
        // A call that goes is taken from the level, also from what has come back, until the next report.
        let mut lane = Lane::default();
        lane.tell(requests(level(1, None)), 0, 0);
        lane.go(1, 0);
        assert_eq!(lane.may_go(A, 1, 10), Err(119_990));
        lane.tell(requests(level(0, None)), 0, 0);
        assert_eq!(lane.may_go(A, 1, 10), Err(59_990));
        let second = lane.go(1, 60_000);
        assert_eq!(lane.may_go(A, 1, 60_000), Err(60_000));
        lane.take_back(second, 1);
        assert_eq!(lane.may_go(A, 1, 60_000), Ok(()));
        lane.tell(requests(level(0, Some(60))), 0, 60_000);
        assert_eq!(lane.may_go(A, 1, 61_000), Ok(()));
        lane.go(1, 61_000);
        assert_eq!(lane.may_go(A, 1, 61_000), Err(1_000));
        assert!(!lane.is_idle(179_999) && lane.is_idle(180_000));
    }
}
