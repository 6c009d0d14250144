//! Outages of upstreams, as the calls of one process find them.
//!
//! An outage begins with the first call that cannot reach its upstream or is refused for its key or quota, and with
//! the third 5xx or 403 in a row. Any other answer to a try that was sent since ends it, and where no connection was made, the
//! first one that is made. An answer to an older try tells nothing: what was in flight may end well while all else fails.
//! A call that failed while others were answered fails by itself: it begins no outage. In a batch's item that holds for its
//! request, however often it is asked, and also where only such requests are left, if an older answer has come since they
//! began to fail, or if nothing else was asked for a quarter of an hour.
//! Meanwhile calls are held, and after each growing pause one of them is the probe. Its place is lent for a few seconds:
//! a probe that hangs keeps nobody else from asking.

use std::collections::HashMap;

use crate::{
    call::{ConnectionId, Key, patience::chance, rates::Wants},
    words::{Cause, Digest},
};

/// Failures in a row that make an outage, where one could be the request's own.
const FAILURES: u32 = 3;

/// Most requests that are known to fail by themselves.
const MOST_ALONE: usize = 256;

/// Time for which items' requests that alone are asked may be taken for an outage, in milliseconds.
const ALONE_MS: u64 = 15 * 60_000;

/// Longest first pause, in milliseconds. Each later pause may be twice as long as the one before.
const FIRST_MS: u64 = 1_000;

/// Interval at which held calls ask again while the probe is under way, in milliseconds.
const LOOK_MS: u64 = 1_000;

/// Time for which a call is the only probe, in milliseconds. An answer may take minutes, and its connection may hang:
/// after this another call probes beside it.
const LENT_MS: u64 = 5_000;

/// Request or call that probes an upstream during its outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A request that has no entry yet.
    Request(ConnectionId),
    Call(Key),
}

/// Health of all upstreams of which the last call failed, each by its address and key.
#[derive(Debug)]
pub struct Outages {
    /// Time for which the place of the probe is lent to a call, in milliseconds.
    pub lent_ms: u64,
    longest_pause_ms: u64,
    failing: HashMap<Digest, Failing>,
    /// Requests that failed before others were answered, oldest first. Another failure of such a request is its own. One that
    /// no item asks is forgotten with its call: in a later outage nobody would wait for it.
    alone: Vec<FailedRequest>,
}

#[derive(Debug)]
struct Failing {
    cause: Cause,
    /// Number of the upstream's failures in a row.
    failures: u32,
    /// Monotonic time at which the outage began, in milliseconds; `None` if there is none.
    out_since_ms: Option<u64>,
    /// Number of pauses in this outage so far.
    pauses: u32,
    /// End of the current pause, in monotonic milliseconds.
    next_ms: u64,
    probe: Option<Lent>,
    /// Requests that failed in this row, each with a failure that could be its own.
    requests: Vec<FailedRequest>,
    /// Whether an answer came during the outage, to a try that was sent before.
    is_heard: bool,
}

/// Request that failed in a row of failures.
#[derive(Debug)]
struct FailedRequest {
    digest: Digest,
    is_of_item: bool,
    failures: u32,
    /// Number of calls that asked it. A batch asks an item again when it has no other one left to ask.
    calls: u32,
    /// Call under way that asks it; `None` once that has ended.
    call: Option<Probe>,
}

impl FailedRequest {
    fn is_remembered(&self) -> bool {
        self.is_of_item || self.call.is_some()
    }

    /// Returns whether its failures may be its own, if nothing but such requests fails.
    fn may_be_alone(&self) -> bool {
        self.is_of_item && self.failures >= FAILURES
    }
}

/// Place of the probe, as it was lent last.
#[derive(Debug)]
struct Lent {
    to: Probe,
    /// End of the time for which no other call is let go, in monotonic milliseconds.
    until_ms: u64,
}

impl Outages {
    pub fn new(longest_pause_ms: u64) -> Outages {
        Outages { lent_ms: LENT_MS, longest_pause_ms, failing: HashMap::new(), alone: Vec::new() }
    }

    /// Notes a failed call `who`, which asks for `wants`. Returns the milliseconds to the next probe; `None` if there is no
    /// outage.
    pub fn failed(&mut self, wants: &Wants, who: Probe, cause: Cause, now_ms: u64) -> Option<u64> {
        let way = &wants.way;
        if !self.is_out(way) && self.fails_alone(wants, cause) {
            return None;
        }
        let longest = self.longest_pause_ms;
        let failing = self.failing.entry(*way).or_insert(Failing {
            cause,
            failures: 0,
            out_since_ms: None,
            pauses: 0,
            next_ms: 0,
            probe: None,
            requests: Vec::new(),
            is_heard: false,
        });
        if !cause.is_certain() {
            failing.note(wants, who);
        }
        failing.cause = cause;
        failing.failures = failing.failures.saturating_add(1);
        if cause.is_certain() || failing.failures >= FAILURES {
            failing.out_since_ms.get_or_insert(now_ms);
        }
        failing.release(who);
        failing.out_since_ms?;
        if failing.is_of_its_requests(now_ms) {
            self.ended(way);
            return None;
        }
        // Calls that fail together are one failure.
        if now_ms >= failing.next_ms {
            let most = (FIRST_MS << failing.pauses.min(20)).min(longest);
            // Jitter over the upper half: processes do not probe together, and pauses grow.
            let pause_ms = most - chance(now_ms, failing.pauses) % (most / 2 + 1);
            failing.pauses += 1;
            failing.next_ms = now_ms + pause_ms;
        }
        Some(failing.next_ms - now_ms)
    }

    /// Returns whether the upstream `way` (see `Wants::way`) has an outage.
    pub fn is_out(&self, way: &Digest) -> bool {
        self.failing.get(way).is_some_and(|failing| failing.out_since_ms.is_some())
    }

    /// Returns whether a failure of this cause is the request's own.
    pub fn fails_alone(&self, wants: &Wants, cause: Cause) -> bool {
        !cause.is_certain() && self.alone.iter().any(|failed| failed.digest == wants.request)
    }

    /// Notes that the upstream answered a try for `wants` that was sent at `sent_ms`. Returns whether that ended an outage.
    pub fn answered(&mut self, wants: &Wants, sent_ms: u64) -> bool {
        let failing = self.failing.get_mut(&wants.way);
        if let Some(failing) = failing.filter(|f| f.out_since_ms.is_some_and(|since| sent_ms < since)) {
            failing.is_heard = true;
            return false;
        }
        let was_out = self.ended(&wants.way);
        self.alone.retain(|failed| failed.digest != wants.request);
        was_out
    }

    /// Ends the upstream's row of failures, after which those requests fail by themselves. Returns whether it was an outage.
    fn ended(&mut self, way: &Digest) -> bool {
        let Some(over) = self.failing.remove(way) else { return false };
        self.alone.extend(over.requests.into_iter().filter(FailedRequest::is_remembered));
        let too_many = self.alone.len().saturating_sub(MOST_ALONE);
        self.alone.drain(..too_many);
        over.out_since_ms.is_some()
    }

    /// Notes that a connection to the upstream was made. Returns whether that ended an outage.
    pub fn connected(&mut self, way: &Digest) -> bool {
        if !self.failing.get(way).is_some_and(|failing| failing.cause.is_no_connection()) {
            return false;
        }
        // A connection answers no call, so that none fails by itself.
        self.failing.remove(way).is_some_and(|failing| failing.out_since_ms.is_some())
    }

    /// Lets `who` go if there is no outage, or as the probe of one. Errors: the cause, and the milliseconds after which
    /// to ask again.
    pub fn may_go(&mut self, way: &Digest, who: Probe, now_ms: u64) -> Result<(), (Cause, u64)> {
        let Some(failing) = self.failing.get_mut(way).filter(|f| f.out_since_ms.is_some()) else {
            return Ok(());
        };
        match &failing.probe {
            Some(lent) if lent.to == who => Ok(()),
            Some(lent) if now_ms < lent.until_ms => Err((failing.cause, LOOK_MS)),
            _ if now_ms < failing.next_ms => Err((failing.cause, failing.next_ms - now_ms)),
            _ => {
                failing.probe = Some(Lent { to: who, until_ms: now_ms.saturating_add(self.lent_ms) });
                Ok(())
            }
        }
    }

    /// Ends the current pause of every outage, so that the next call that asks is its probe.
    pub fn probe_now(&mut self, now_ms: u64) {
        self.failing.values_mut().for_each(|failing| failing.next_ms = failing.next_ms.min(now_ms));
    }

    /// Makes the call `to` the probe, if the request `from`, which has become that call, was the probe.
    pub fn becomes(&mut self, way: &Digest, from: ConnectionId, to: Key) {
        let lent = self.failing.get_mut(way).and_then(|failing| failing.probe.as_mut());
        if let Some(lent) = lent.filter(|lent| lent.to == Probe::Request(from)) {
            lent.to = Probe::Call(to);
        }
    }

    /// Forgets `who`, which has ended, and frees the place of the probe for another call, if `who` has it.
    pub fn give_back(&mut self, way: &Digest, who: Probe) {
        for failed in &mut self.alone {
            failed.call.take_if(|call| *call == who);
        }
        self.alone.retain(FailedRequest::is_remembered);
        if let Some(failing) = self.failing.get_mut(way) {
            for failed in &mut failing.requests {
                failed.call.take_if(|call| *call == who);
            }
            failing.release(who);
        }
    }
}

impl Failing {
    /// Counts a failure that could be the request's own.
    fn note(&mut self, wants: &Wants, who: Probe) {
        match self.requests.iter_mut().find(|failed| failed.digest == wants.request) {
            Some(failed) => {
                failed.failures += 1;
                failed.calls += u32::from(failed.call.replace(who) != Some(who));
            }
            None => self.requests.push(FailedRequest {
                digest: wants.request,
                is_of_item: wants.is_of_item,
                failures: 1,
                calls: 1,
                call: Some(who),
            }),
        }
    }

    /// Returns whether the failures are more likely those of the requests that are left than an outage: each failed several
    /// times, and the upstream has answered others meanwhile, or nothing else is there to ask for long. A status that says
    /// "overloaded" is no request's own.
    fn is_of_its_requests(&self, now_ms: u64) -> bool {
        let left = || self.requests.iter().filter(|failed| failed.call.is_some());
        let is_long = self.out_since_ms.is_some_and(|since| now_ms.saturating_sub(since) >= ALONE_MS);
        (self.is_heard || is_long && left().all(|failed| failed.calls > 1))
            && matches!(self.cause, Cause::Failing(status) if !matches!(status, 503 | 529))
            && left().next().is_some()
            && left().all(FailedRequest::may_be_alone)
    }

    fn release(&mut self, who: Probe) {
        self.probe.take_if(|lent| lent.to == who);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        call::Rate,
        words::{RunNo, Seq},
    };

    const U: Digest = Digest([1; 32]);

    fn call(n: u8) -> Probe {
        Probe::Call((RunNo(1), Seq(n.into())))
    }

    /// Returns the wants of the request that the call of this number asks.
    fn wants(n: u8) -> Wants {
        Wants {
            upstream: "u".into(),
            way: U,
            request: Digest([n; 32]),
            is_of_item: true,
            account: (None, "m".into()),
            rate: Rate { requests: None, tokens: None },
            bound: 1,
            input_bound: 1,
            patience_ms: 1,
        }
    }

    #[test]
    fn one_failure_to_reach_it_is_an_outage_and_a_status_is_at_the_third_time() {
        let check = |causes: &[Cause], wanted: bool| {
            let mut outages = Outages::new(60_000);
            let told =
                causes.iter().map(|cause| outages.failed(&wants(1), call(1), *cause, 0)).last().flatten();
            assert_eq!((told.is_some(), outages.may_go(&U, call(2), 0).is_err()), (wanted, wanted));
        };
        let failing = Cause::Failing(529);
        check(&[Cause::NoConnection], true);
        check(&[Cause::NoName], true);
        check(&[Cause::KeyRefused(401)], true);
        check(&[Cause::QuotaEnded(429)], true);
        check(&[failing, failing], false);
        check(&[Cause::KeyRefused(403), Cause::KeyRefused(403)], false);
        check(&[failing, Cause::Lost, failing], true);
    }

    #[test]
    fn any_answer_begins_the_row_anew() {
        let mut outages = Outages::new(60_000);
        let fails = |outages: &mut Outages, n| outages.failed(&wants(n), call(n), Cause::Failing(500), 0);
        assert_eq!((fails(&mut outages, 1), fails(&mut outages, 2)), (None, None));
        assert!(!outages.answered(&wants(99), 0), "two failures were no outage");
        assert_eq!((fails(&mut outages, 3), fails(&mut outages, 4)), (None, None));
        assert!(fails(&mut outages, 5).is_some());
        assert!(outages.answered(&wants(99), 0));
        assert_eq!(outages.may_go(&U, call(1), 0), Ok(()));
    }

    // Bug: a request that its provider always answers with 504 was held, alone at the end of its batch, for hours.
    // Cause: its own tries, and those of others like it, were an outage, although all else was answered.
    #[test]
    fn a_request_that_fails_while_others_are_answered_begins_no_outage_in_its_next_calls_either() {
        let mut outages = Outages::new(60_000);
        let fails = |outages: &mut Outages, n| outages.failed(&wants(n), call(n), Cause::Failing(504), 0);
        assert_eq!((fails(&mut outages, 1), fails(&mut outages, 2)), (None, None));
        outages.give_back(&U, call(1));
        assert!(fails(&mut outages, 3).is_some());
        assert!(outages.answered(&wants(4), 0), "by a fourth one");
        for n in [3, 2, 1, 3] {
            assert_eq!(fails(&mut outages, n), None, "{n}");
        }
        outages.give_back(&U, call(3));
        let next = outages.failed(&wants(3), call(33), Cause::Failing(504), 0);
        assert_eq!(next, None, "another call for the same");
        outages.give_back(&U, call(33));
        assert!(
            outages.failed(&wants(3), call(3), Cause::NoConnection, 0).is_some(),
            "that is no call's own"
        );
        assert!(fails(&mut outages, 3).is_some(), "it is held as the others are");
        assert!(outages.failed(&wants(3), call(3), Cause::NoConnection, 0).is_some());
        assert!(outages.connected(&U), "which answers nobody");
        assert!(outages.failed(&wants(4), call(4), Cause::NoConnection, 0).is_some());
        assert!(outages.answered(&wants(4), 0));
        let row = [4, 4].map(|n| fails(&mut outages, n));
        assert_eq!(row, [None, None], "a failure to connect was not its own");
        assert!(fails(&mut outages, 4).is_some() && outages.answered(&wants(4), 0));
        let row = [4, 4].map(|n| fails(&mut outages, n));
        assert_eq!(row, [None, None], "it was answered itself");
        assert!(fails(&mut outages, 4).is_some() && outages.answered(&wants(5), 0));
        let agents = Wants { is_of_item: false, ..wants(6) };
        for call_of in [61, 62] {
            let row = [0; 3].map(|_| outages.failed(&agents, call(call_of), Cause::Failing(504), 0));
            assert!(row[2].is_some(), "an agent's next call is held as its first one was: {row:?}");
            assert!(outages.answered(&wants(5), 0));
            assert_eq!(outages.failed(&agents, call(call_of), Cause::Failing(504), 0), None);
            outages.give_back(&U, call(call_of));
        }
    }

    // Bug: three such requests, the last of their batch, were an outage without an end.
    #[test]
    fn items_that_alone_are_left_fail_by_themselves_if_others_were_answered_meanwhile() {
        let check = |status: u16, is_of_item: bool, is_heard: bool, wanted: bool| {
            let mut outages = Outages::new(60_000);
            let fails = |outages: &mut Outages, n, at| {
                let wants = Wants { is_of_item, ..wants(n) };
                outages.failed(&wants, call(n), Cause::Failing(status), at)
            };
            for n in [1, 2, 3] {
                fails(&mut outages, n, 100);
            }
            outages.give_back(&U, call(1));
            assert!(!is_heard || !outages.answered(&wants(4), 99));
            for (n, at) in [(2, 200), (3, 300), (2, 400)] {
                assert!(fails(&mut outages, n, at).is_some(), "{n} {at}");
            }
            assert_eq!(fails(&mut outages, 3, 500).is_none(), wanted, "{status} {is_of_item} {is_heard}");
            assert_eq!(outages.is_out(&U), !wanted);
            assert_eq!(outages.fails_alone(&wants(2), Cause::Failing(status)), wanted);
        };
        check(504, true, true, true);
        check(500, true, true, true);
        check(529, true, true, false);
        check(503, true, true, false);
        check(504, false, true, false);
        check(504, true, false, false);
    }

    // Bug: an item that always fails, the last of its batch, was waited for half a day. Cause: nothing else was asked, so that
    // nobody was answered meanwhile.
    #[test]
    fn an_item_that_alone_is_asked_holds_its_batch_for_a_quarter_of_an_hour() {
        let check = |status: u16, is_of_item: bool, at: u64, wanted: bool| {
            let mut outages = Outages::new(60_000);
            let wants = Wants { is_of_item, ..wants(1) };
            for n in [1, 2] {
                for _ in 0..3 {
                    outages.failed(&wants, call(n), Cause::Failing(status), 0);
                }
                outages.give_back(&U, call(n));
            }
            let next = outages.failed(&wants, call(3), Cause::Failing(status), at);
            assert_eq!(next.is_none(), wanted, "{status} {is_of_item} {at}");
            assert_eq!(outages.fails_alone(&wants, Cause::Failing(status)), wanted);
        };
        check(504, true, ALONE_MS, true);
        check(504, true, ALONE_MS - 1, false);
        check(503, true, ALONE_MS, false);
        check(504, false, ALONE_MS, false);
    }

    #[test]
    fn an_item_beside_others_that_were_asked_once_is_waited_for_as_long_as_the_outage_lasts() {
        let mut outages = Outages::new(60_000);
        let fails = |outages: &mut Outages, of, who, at| {
            outages.failed(&wants(of), call(who), Cause::Failing(504), at)
        };
        for (of, who) in [(1, 1), (1, 2), (1, 2), (2, 3), (2, 3), (2, 3)] {
            fails(&mut outages, of, who, 0);
        }
        assert!(fails(&mut outages, 1, 2, ALONE_MS).is_some(), "another item was asked by one call only");
        assert!(fails(&mut outages, 2, 4, ALONE_MS).is_none(), "now by two");
    }

    // Bug: "answers again" was said of calls that had been in flight when the outage began, again and again. Cause: any
    // answer ended an outage.
    #[test]
    fn an_answer_to_a_try_that_was_sent_before_the_outage_does_not_end_it() {
        let mut outages = Outages::new(60_000);
        outages.failed(&wants(1), call(1), Cause::NoConnection, 100);
        assert!(!outages.answered(&wants(99), 99) && outages.may_go(&U, call(2), 100).is_err());
        outages.failed(&wants(1), call(1), Cause::NoConnection, 900);
        assert!(outages.answered(&wants(99), 800), "sent since it began, whatever failed later");
        assert_eq!(outages.may_go(&U, call(2), 900), Ok(()));
    }

    #[test]
    fn one_call_at_a_time_is_the_probe_and_only_after_the_pause() {
        let mut outages = Outages::new(60_000);
        let asks = |outages: &mut Outages, who, now| outages.may_go(&U, who, now).map_err(|(_, ms)| ms);
        let pause = outages.failed(&wants(1), call(1), Cause::NoConnection, 100).unwrap();
        assert!((500..=1_000).contains(&pause), "{pause}");
        let (client, due) = (Probe::Request(ConnectionId(7)), 100 + pause);
        assert_eq!(asks(&mut outages, client, due - 1), Err(1));
        assert_eq!(asks(&mut outages, client, due), Ok(()));
        assert_eq!(asks(&mut outages, call(1), due), Err(LOOK_MS));
        outages.becomes(&U, ConnectionId(7), (RunNo(1), Seq(2)));
        assert_eq!(
            (asks(&mut outages, call(2), due), asks(&mut outages, client, due)),
            (Ok(()), Err(LOOK_MS))
        );
        outages.give_back(&U, call(2));
        assert_eq!(asks(&mut outages, call(1), due), Ok(()), "the probe came to nothing: another one goes");
        assert!(outages.failed(&wants(1), call(1), Cause::NoConnection, due).is_some_and(|ms| ms >= 1_000));
        assert_eq!(outages.may_go(&Digest([2; 32]), client, 0), Ok(()));
    }

    // Bug: a probe whose connection hung kept its place until it timed out.
    // Consequence: for ten minutes all calls of the process were refused, while the provider answered whoever asked.
    // Cause: the place was given for as long as the probe's answer took.
    #[test]
    fn the_probes_place_is_lent_for_seconds() {
        let mut outages = Outages::new(60_000);
        let due = outages.failed(&wants(1), call(1), Cause::Lost, 0).or_else(|| {
            outages.failed(&wants(1), call(1), Cause::Lost, 0);
            outages.failed(&wants(1), call(1), Cause::Lost, 0)
        });
        let due = due.unwrap();
        let lent_until = due + LENT_MS;
        assert_eq!(outages.may_go(&U, call(1), due), Ok(()));
        assert_eq!(outages.may_go(&U, call(2), lent_until - 1), Err((Cause::Lost, LOOK_MS)));
        assert_eq!(outages.may_go(&U, call(2), lent_until), Ok(()), "beside the one that hangs");
        assert_eq!(outages.may_go(&U, call(3), lent_until), Err((Cause::Lost, LOOK_MS)));
        outages.give_back(&U, call(1));
        assert_eq!(
            outages.may_go(&U, call(3), lent_until),
            Err((Cause::Lost, LOOK_MS)),
            "no longer its place"
        );
        assert!(outages.answered(&wants(99), 0));
    }

    #[test]
    fn a_connection_ends_an_outage_in_which_none_was_made_and_no_other() {
        use Cause::*;
        for (cause, ended) in [
            (NoConnection, true),
            (NoName, true),
            (NoTls, true),
            (KeyRefused(401), false),
            (QuotaEnded(402), false),
            (Failing(500), false),
            (Lost, false),
        ] {
            let mut outages = Outages::new(60_000);
            for _ in 0..3 {
                outages.failed(&wants(1), call(1), cause, 0);
            }
            assert_eq!(outages.connected(&U), ended, "{cause:?}");
            assert_eq!(outages.may_go(&U, call(2), 0).is_ok(), ended, "{cause:?}");
        }
    }

    #[test]
    fn a_person_ends_the_pause_and_one_call_probes() {
        let mut outages = Outages::new(60_000);
        outages.failed(&wants(1), call(1), Cause::NoConnection, 0);
        assert!(outages.may_go(&U, call(1), 100).is_err());
        outages.probe_now(100);
        assert_eq!(outages.may_go(&U, call(1), 100), Ok(()));
        assert_eq!(outages.may_go(&U, call(2), 100), Err((Cause::NoConnection, LOOK_MS)));
    }

    #[test]
    fn pauses_grow_to_the_longest_and_calls_that_fail_together_are_one_failure() {
        let mut outages = Outages::new(9_000);
        let (mut now, mut pauses) = (0, Vec::new());
        for n in 0..6 {
            let pause = outages.failed(&wants(n), call(n), Cause::NoConnection, now).unwrap();
            assert_eq!(outages.failed(&wants(n + 100), call(n + 100), Cause::NoConnection, now), Some(pause));
            pauses.push(pause);
            now += pause;
        }
        for (pause, most) in pauses.iter().zip([1_000, 2_000, 4_000, 8_000, 9_000, 9_000]) {
            assert!((most / 2..=most).contains(pause), "{pauses:?}");
        }
    }
}
