//! Properties of the decisions together: random sequences keep the sums, the limits and the amounts in doubt.

use proptest::prelude::*;

use crate::{
    engine::{
        Actor, Admission, Bill, Close,
        tests::bench::{Bench, Request, bill, usd},
    },
    envelope::{Limits, Unit},
    journal::{Entry, Opening, State},
    run::{InDoubt, Policy},
    words::{InstanceNo, RunNo, Seq},
};

/// Random event of a sequence.
#[derive(Clone, Debug)]
enum Move {
    Admit {
        run: usize,
        request: Request,
    },
    /// Closes one of the calls opened so far with its true outcome; usage is a share of its bound, in percent.
    Close {
        which: usize,
        how: How,
    },
    Deliver {
        which: usize,
    },
    /// The run's driver dies, and another process takes over.
    Restart {
        run: usize,
    },
    Raise {
        run: usize,
        by: i64,
    },
}

#[derive(Clone, Copy, Debug)]
enum How {
    Done(u64),
    DoneWithoutUsage,
    Failed(u64),
    Refused,
    Void,
    Unknown,
}

fn request() -> impl Strategy<Value = Request> {
    // Few prompts and a floor near the cap: lost tries get retries, and those inherit.
    (0..2u8, 0..40u64, 1..80u64, 40..80u64, 0..3u32).prop_map(|(prompt, input, cap, floor, retry_count)| {
        Request { prompt, input, cap, floor: floor.min(cap), retry_count, behind: false }
    })
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![
        4 => (0..=100u64).prop_map(How::Done),
        1 => Just(How::DoneWithoutUsage),
        1 => (0..=100u64).prop_map(How::Failed),
        2 => Just(How::Refused),
        1 => Just(How::Void),
        2 => Just(How::Unknown),
    ]
}

fn step() -> impl Strategy<Value = Move> {
    prop_oneof![
        6 => (0..2usize, request()).prop_map(|(run, request)| Move::Admit { run, request }),
        6 => (any::<usize>(), how()).prop_map(|(which, how)| Move::Close { which, how }),
        2 => any::<usize>().prop_map(|which| Move::Deliver { which }),
        3 => (0..2usize).prop_map(|run| Move::Restart { run }),
        1 => (0..2usize, 1..100i64).prop_map(|(run, by)| Move::Raise { run, by }),
    ]
}

fn policy() -> impl Strategy<Value = InDoubt> {
    prop_oneof![3 => Just(InDoubt::AsRetry), 1 => Just(InDoubt::Keep), 1 => Just(InDoubt::Refund)]
}

/// A call that left, and the most it can be billed.
struct Sent {
    actor: Actor,
    seq: Seq,
    bound: i64,
    void: bool,
}

struct World {
    b: Bench,
    runs: [(RunNo, Option<Actor>); 2],
    sent: Vec<Sent>,
}

impl World {
    /// Two runs under one parent.
    fn new(limits: [i64; 3], calls: i64, in_doubt: InDoubt) -> World {
        let b = Bench::new();
        let policy = Policy { in_doubt, ..Policy::default() };
        let parent = b.start("parent", usd(limits[0]), None, policy);
        let mut own: Limits = usd(limits[1]);
        own[Unit::Calls] = Some(calls);
        let runs = [("a", own), ("b", usd(limits[2]))].map(|(id, limits)| {
            let run = b.start(id, limits, Some(parent), policy);
            (run, b.claim(run, b.register()).unwrap())
        });
        World { b, runs, sent: Vec::new() }
    }

    fn play(&mut self, m: &Move) {
        match m {
            Move::Admit { run, request } => self.admit(*run, *request),
            Move::Close { which, how } => self.close(*which, *how),
            Move::Deliver { which } => {
                if let Some(s) = pick(&self.sent, *which)
                    && let Some(actor) = self.runs.iter().find(|r| r.0 == s.actor.run).and_then(|r| r.1)
                    && self.b.entry(actor.run, s.seq).state == State::Done
                {
                    self.b.delivered(actor.run, s.seq, actor.attempt);
                }
            }
            Move::Restart { run } => self.restart(*run),
            Move::Raise { run, by } => {
                self.b.raise(self.runs[*run].0, Unit::CostNanoUsd, *by).unwrap();
            }
        }
    }

    fn admit(&mut self, run: usize, request: Request) {
        let Some(actor) = self.runs[run].1 else { return };
        let before = self.entries(actor.run);
        let serves = |e: &Entry| {
            let own = e.attempt == actor.attempt || e.instance != Some(actor.instance);
            let answers = e.state == State::Open || e.state == State::Done && e.replayable;
            let same =
                e.call.as_ref().unwrap().digest == Some(crate::words::digest::Digest::of(&[request.prompt]));
            own && answers && same && e.delivered_to != Some(actor.attempt)
        };
        let had = |e: &&Entry| {
            let other = |o: &&Entry| o.state == State::Done && first_try(&before, o) == first_try(&before, e);
            e.delivered_to.is_some() || !before.iter().filter(other).any(|o| o.delivered_to.is_some())
        };
        let free = || before.iter().filter(|e| serves(e));
        let lowest = free().find(had).or_else(|| free().next()).map(|e| e.seq);
        match self.b.admit(actor, request, &[]) {
            Ok(Admission::Go { opening: Opening { seq, .. }, .. }) => {
                assert_eq!(lowest, None, "bought, although an answer serves");
                // Not the request's own bound: a retry has that of its lost try, where that is lower.
                let bound = self.b.entry(actor.run, seq).call.unwrap().reserved.cost();
                self.sent.push(Sent { actor, seq, bound, void: false });
            }
            Ok(Admission::Replay { seq } | Admission::Join { seq, .. }) => {
                assert!(lowest == Some(seq) || lowest.is_none() && request.retry_count > 0);
            }
            Ok(Admission::Wait { .. } | Admission::Refused(_)) | Err(_) => assert_eq!(lowest, None),
        }
    }

    fn close(&mut self, which: usize, how: How) {
        let Some(s) = pick(&self.sent, which) else { return };
        let used = |percent: u64| bill(s.bound as u64 * percent / 100);
        let close = match how {
            How::Done(percent) => Close::Done(used(percent)),
            How::DoneWithoutUsage => Close::Done(Bill::Reservation),
            How::Failed(percent) => Close::Failed(used(percent)),
            How::Refused => Close::Failed(Bill::Nothing),
            How::Void => Close::Void,
            How::Unknown => Close::Unknown,
        };
        let closed = self.b.settle(s.actor, s.seq, close).is_ok();
        // From now on the truth is what it was closed at; in doubt it stays the bound.
        let bound = match how {
            How::Done(percent) | How::Failed(percent) => s.bound * percent as i64 / 100,
            How::Refused | How::Void => 0,
            How::DoneWithoutUsage | How::Unknown => s.bound,
        };
        let seq = s.seq;
        let run = s.actor.run;
        if closed && let Some(s) = self.sent.iter_mut().find(|s| s.seq == seq && s.actor.run == run) {
            s.bound = bound;
            s.void = matches!(how, How::Void);
        }
    }

    fn restart(&mut self, run: usize) {
        let (no, actor) = self.runs[run];
        if let Some(actor) = actor {
            self.b.die(actor.instance);
        }
        self.runs[run].1 = self.b.claim(no, self.b.register()).unwrap_or(None);
    }

    fn entries(&self, run: RunNo) -> Vec<Entry> {
        self.b.store.inspect(|t, _| t.entries_of(run).cloned().collect())
    }

    /// Returns the cost of the retry as which a lost call was charged, if it was.
    fn estimate(&self, e: &Entry) -> Option<i64> {
        let why = &e.call.as_ref()?.correction.as_ref()?.why;
        let retry = why.strip_prefix("lost; charged as its retry, entry ")?;
        Some(self.b.entry(e.run, Seq(retry.parse().unwrap())).spent.cost())
    }

    fn check(&self) {
        self.b.check();
        for s in &self.sent {
            let e = self.b.entry(s.actor.run, s.seq);
            // Nothing in doubt is free: what no envelope holds is told as unbacked, whoever took it over.
            let told = e.spent.cost() + e.held.cost() + e.unbacked().cost();
            let can_be = s.bound.min(self.estimate(&e).unwrap_or(s.bound));
            assert!(
                told >= can_be,
                "entry {} is {} and told at {told}, and its truth can be {can_be}",
                s.seq,
                e.state.name(),
            );
            assert!(!s.void || e.spent.is_zero(), "entry {} is void and charged", s.seq);
            // An open call of a dead instance was swept.
            let live = self
                .b
                .store
                .inspect(|t, _| t.instances.get(&e.instance.unwrap_or(InstanceNo(0))).map(|i| i.life));
            assert!(e.state != State::Open || live == Some(crate::run::instance::Life::Live));
        }
    }
}

/// Returns the first try of the request that the entry is a try of.
fn first_try(entries: &[Entry], e: &Entry) -> Seq {
    let lost = e.call.as_ref().and_then(|c| c.retry_of);
    lost.and_then(|seq| entries.iter().find(|e| e.seq == seq)).map_or(e.seq, |lost| first_try(entries, lost))
}

fn pick(sent: &[Sent], which: usize) -> Option<&Sent> {
    sent.get(which.checked_rem(sent.len())?)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_decisions_keeps_the_sums_the_limits_and_what_is_in_doubt(
        limits in prop::array::uniform3(60..250i64),
        calls in 2..20i64,
        in_doubt in policy(),
        moves in prop::collection::vec(step(), 1..60),
    ) {
        let mut world = World::new(limits, calls, in_doubt);
        for m in &moves {
            world.play(m);
            world.check();
        }
    }
}
