//! Defects the simulator found, each with its shortest story.

use crate::{
    engine::{
        Actor, Admission, Bill, Close,
        tests::bench::{Bench, Request, bill, usd},
    },
    envelope::{Limits, Unit, unit::MOST_PER_CALL},
    journal::{Entry, State, divergence::partings},
    reads::{entries, spend::spend},
    run::{OnDivergence, Policy},
    store::Store,
    words::{InstanceNo, Micros, RunNo, Seq, ServiceTier, Usage},
};

const LOST: u8 = 0;
const OTHER: u8 = 1;

fn bench(limits: Limits) -> (Bench, RunNo, InstanceNo, Actor) {
    let b = Bench::new();
    let instance = b.register();
    let run = b.start("r", limits, None, Policy::default());
    let actor = b.claim(run, instance).unwrap().unwrap();
    (b, run, instance, actor)
}

// Bug: an attempt's delivery mark replaced that of its successor. Consequence: the successor's next
// identical request was given the answer it had already. Cause: a client of the ended attempt was
// still connected, and its mark was written last.
#[test]
fn an_ended_attempts_delivery_does_not_hide_its_successors() {
    let (b, run, instance, first) = bench(Limits::default());
    let seq = b.go(first, Request::of(0, 10));
    let second = b.claim(run, instance).unwrap().unwrap();
    b.settle(first, seq, Close::Done(bill(5))).unwrap();
    assert!(matches!(b.admit(second, Request::of(0, 10), &[]), Ok(Admission::Replay { .. })));
    b.delivered(run, seq, second.attempt);
    b.delivered(run, seq, first.attempt);
    assert_eq!(b.entry(run, seq).delivered_to, Some(second.attempt));
    assert!(matches!(b.admit(second, Request::of(0, 10), &[]), Ok(Admission::Go { .. })));
}

// Bug: a lost call whose hold its retry had inherited gave that hold back to the try before it, too,
// when its truth came late and was zero. Consequence: one hold stood twice, beyond the limit. Cause:
// `give_back` did not ask whether the retry still held what it had taken.
#[test]
fn a_late_truth_gives_back_nothing_that_was_passed_on() {
    let (b, run, instance, one) = bench(usd(100));
    let lost = b.go(one, Request::of(LOST, 100));
    b.die(instance);
    let two = b.claim(run, b.register()).unwrap().unwrap();
    let again = b.go(two, Request::of(LOST, 100));
    b.die(two.instance);
    let three = b.claim(run, b.register()).unwrap().unwrap();
    let last = b.go(three, Request::of(LOST, 100));
    assert_eq!(b.sums(run), (0, 100, 0));

    b.settle(two, again, Close::Failed(Bill::Nothing)).unwrap();
    b.check();
    assert_eq!(b.sums(run), (0, 100, 0));
    // The chain is still backed: when its last try comes to nothing, the first is in doubt again.
    b.settle(three, last, Close::Failed(Bill::Nothing)).unwrap();
    b.check();
    assert_eq!(b.sums(run), (0, 100, 100));
    let first = b.entry(run, lost);
    assert_eq!((first.state, first.held.cost(), first.retried_by), (State::Unknown, 100, None));
}

// Bug: a lost call whose retry had fitted without inheriting gave nothing back when its own truth came
// late and was zero. Consequence: the try before it was in doubt and free. Cause: having a retry was
// taken for having passed the hold on to it.
#[test]
fn a_late_truth_gives_back_what_was_not_passed_on() {
    let (b, run, instance, one) = bench(usd(110));
    let lost = b.go(one, Request::of(LOST, 100));
    b.die(instance);
    let two = b.claim(run, b.register()).unwrap().unwrap();
    let again = b.go(two, Request::of(LOST, 100));
    b.die(two.instance);
    let three = b.claim(run, b.register()).unwrap().unwrap();
    let small = b.go(three, Request::of(LOST, 10));
    b.settle(two, again, Close::Failed(Bill::Nothing)).unwrap();
    b.check();
    assert_eq!(b.entry(run, lost).held.cost(), 100);
    b.settle(three, small, Close::Failed(Bill::Nothing)).unwrap();
    b.check();
    assert_eq!(b.sums(run), (0, 100, 100));
}

// Bug: a lost call whose answer came late, without usage, was charged nothing. Consequence: a paid call
// was free. Cause: it was charged what it held, and its retry had inherited that.
#[test]
fn a_late_answer_without_usage_is_charged_its_reservation_whoever_holds_it() {
    let (b, run, instance, one) = bench(usd(100));
    let lost = b.go(one, Request::of(LOST, 100));
    b.die(instance);
    let two = b.claim(run, b.register()).unwrap().unwrap();
    b.go(two, Request::of(LOST, 100));
    b.settle(one, lost, Close::Done(Bill::Reservation)).unwrap();
    b.check();
    // Both may be billed in full: what no reservation covered is recorded as beyond it.
    assert_eq!(b.sums(run), (100, 100, 0));
    assert_eq!(b.entry(run, lost).call.unwrap().overrun_nano_usd, 100);
}

// Bug: a lost call whose truth came late passed a limit of tokens, and nothing told by how much. Consequence: a budget in
// tokens was over its limit for no reason that `show` gave. Cause: only dollars beyond a call's hold were recorded.
#[test]
fn tokens_billed_beyond_what_a_call_held_are_recorded_as_dollars_are() {
    let mut limits = Limits::default();
    limits[Unit::Tokens] = Some(100);
    let (b, run, instance, one) = bench(limits);
    let lost = b.go(one, Request::of(LOST, 100));
    b.die(instance);
    let two = b.claim(run, b.register()).unwrap().unwrap();
    let retry = b.go(two, Request::of(LOST, 100));
    let late = b.settle(one, lost, Close::Done(bill(70))).unwrap();
    let beyond = b.settle(two, retry, Close::Done(bill(130))).unwrap();
    assert_eq!([late, beyond].map(|s| (s.overrun_nano_usd, s.overrun_tokens)), [(70, 70), (30, 30)]);
    assert_eq!(b.entry(run, retry).call.unwrap().overrun_tokens, 30);
    b.check();
}

// Bug: a retry took over more than it needed, others reserved the rest, and giving it back passed
// the limit. Cause: the whole hold was inherited, whatever the retry's bound (a retry can be bound
// more tightly: its prompt is measured against a base that was not known before).
#[test]
fn a_retry_inherits_no_more_than_it_needs() {
    let (b, run, instance, one) = bench(usd(110));
    let lost = b.go(one, Request::of(LOST, 100));
    b.die(instance);
    let two = b.claim(run, b.register()).unwrap().unwrap();
    let retry = b.go(two, Request::of(LOST, 60));
    assert_eq!(b.entry(run, lost).held.cost(), 40);
    assert!(matches!(b.admit(two, Request::of(OTHER, 50), &[]), Ok(Admission::Wait { .. })));
    b.settle(two, retry, Close::Failed(Bill::Nothing)).unwrap();
    b.check();
    assert_eq!(b.entry(run, lost).held.cost(), 100);
}

// Bug: a call that could not fit halted the run while an earlier call waited for room. Cause: the
// queue was asked after the limits.
#[test]
fn a_call_behind_a_queue_halts_nothing() {
    let (b, run, _, actor) = bench(usd(100));
    b.go(actor, Request::of(0, 100));
    let behind = Request { behind: true, ..Request::of(1, 500) };
    assert!(matches!(b.admit(actor, behind, &[]), Ok(Admission::Wait { .. })));
    assert_eq!(b.status(run), "running");
    assert!(matches!(b.admit(actor, Request::of(1, 500), &[]), Ok(Admission::Refused(_))));
    assert_eq!(b.status(run), "halted");
}

// Bug: a lost call whose hold its retry took over was in doubt at 0.00. Consequence: three lost tries were told as one,
// and the provider's bill for two of them nowhere. Cause: only what an envelope holds was counted as doubt.
#[test]
fn a_chain_of_lost_tries_is_told_in_full() {
    let (b, run, instance, one) = bench(usd(100));
    let mut actor = one;
    let mut tries = vec![b.go(actor, Request::of(LOST, 100))];
    b.die(instance);
    for _ in 0..2 {
        actor = b.claim(run, b.register()).unwrap().unwrap();
        tries.push(b.go(actor, Request::of(LOST, 100)));
        b.die(actor.instance);
    }
    let told = |seq: &Seq| (b.entry(run, *seq).held.cost(), b.entry(run, *seq).unbacked().cost());
    assert_eq!(tries.iter().map(told).collect::<Vec<_>>(), [(0, 100), (0, 100), (100, 0)]);
    let lines = b.store.ledger(Micros(0), Micros(i64::MAX)).unwrap();
    assert_eq!((lines[0].doubt_nano_usd, lines[0].unbacked_nano_usd), (100, 200));
    // One truth comes late: it is recorded in full, and is in doubt no longer.
    b.settle(one, tries[0], Close::Done(bill(70))).unwrap();
    assert_eq!((told(&tries[0]), b.entry(run, tries[0]).call.unwrap().overrun_nano_usd), ((0, 0), 70));
}

// Bug: a lost call was charged as its retry although that was cut off at a lower cap. Consequence: the provider's bill
// passed what was told. Cause: the retry's cost was taken for what the lost call cost, whatever the retry could cost.
#[test]
fn a_lost_call_whose_retry_was_cut_shorter_is_charged_its_own_bound() {
    let check = |used: u64, wanted: [(i64, i64); 3]| {
        let (b, run, instance, one) = bench(usd(100));
        let request = Request { prompt: LOST, cap: 100, floor: 10, ..Request::default() };
        let mut tries = vec![b.go(one, request)];
        b.die(instance);
        for _ in 0..2 {
            let actor = b.claim(run, b.register()).unwrap().unwrap();
            tries.push(b.go(actor, request));
            b.die(actor.instance);
        }
        // The chain inherits no more: the fourth try has the new room only.
        b.raise(run, Unit::CostNanoUsd, 60).unwrap();
        let last = b.claim(run, b.register()).unwrap().unwrap();
        let retry = b.go(last, request);
        assert_eq!(b.entry(run, retry).call.unwrap().clamped_to, Some(60));
        b.settle(last, retry, Close::Done(bill(used))).unwrap();
        b.check();
        let told = tries.iter().map(|seq| b.entry(run, *seq)).map(|e| (e.spent.cost(), e.unbacked().cost()));
        assert_eq!(told.collect::<Vec<_>>(), wanted, "{used}");
    };
    check(60, [(0, 100), (0, 100), (100, 0)]);
    // The answer ended by itself, so a higher cap would have changed nothing.
    check(59, [(0, 59), (42, 17), (59, 0)]);
}

// Bug: the retry of a clamped call was refused after a restart, although the call's own hold was kept. Consequence: 402
// and a halted run, for a request that fits. Cause: the new process bound the same body more loosely, because it knew no
// base of it.
#[test]
fn a_retry_is_bound_no_more_loosely_than_its_lost_try() {
    for floor in [10, 60] {
        let (b, run, instance, one) = bench(usd(100));
        let request = |input| Request { prompt: LOST, input, cap: 60, floor, ..Request::default() };
        let lost = b.go(one, request(40));
        b.die(instance);
        let two = b.claim(run, b.register()).unwrap().unwrap();
        let retry = b.go(two, request(90));
        let (lost, retry) = (b.entry(run, lost), b.entry(run, retry));
        assert_eq!((retry.held.cost(), retry.held.tokens()), (100, 100), "{floor}");
        assert_eq!(
            (retry.call.unwrap().clamped_to, lost.held.cost(), lost.unbacked().cost()),
            (None, 0, 100)
        );
        b.check();
    }
}

// Bug: after a server was frozen and its call was lost, retried and delivered, its late answer served the next life.
// Consequence: a restarted agent got another answer than the one it had acted on. Cause: the lowest candidate serves, and
// nobody asked which of two tries the agent had received.
#[test]
fn a_late_answer_does_not_stand_before_the_one_that_was_delivered() {
    let (b, run, frozen, one) = bench(Limits::default());
    let request = Request::of(LOST, 10);
    let late = b.go(one, request);
    let other = b.go(one, Request::of(OTHER, 10));
    b.die(frozen);
    let first = b.claim(run, b.register()).unwrap().unwrap();
    let retry = b.go(first, request);
    b.settle(one, late, Close::Done(bill(5))).unwrap();
    b.settle(one, other, Close::Done(bill(5))).unwrap();
    b.settle(first, retry, Close::Done(bill(5))).unwrap();
    b.delivered(run, retry, first.attempt);
    let second = b.claim(run, first.instance).unwrap().unwrap();
    assert_eq!(b.admit(second, request, &[]), Ok(Admission::Replay { seq: retry }));
    b.delivered(run, retry, second.attempt);
    // Paid once: a second request of the kind is not bought while the late answer is there.
    assert_eq!(b.admit(second, request, &[]), Ok(Admission::Replay { seq: late }));
    // A late answer of a request that has no other is served as ever.
    assert_eq!(b.admit(second, Request::of(OTHER, 10), &[]), Ok(Admission::Replay { seq: other }));
}

// Bug: an answer that came late, beside the one of its retry, counted as one more to be taken. Consequence: the restarted
// agent's first new call was a divergence, and under `on_divergence = "halt"` halted its run. Cause: each answer was
// counted, and two tries of one request have two.
#[test]
fn two_answers_of_one_request_are_one_to_be_taken() {
    let b = Bench::new();
    let policy = Policy { on_divergence: OnDivergence::Halt, ..Policy::default() };
    let run = b.start("r", Limits::default(), None, policy);
    let one = b.claim(run, b.register()).unwrap().unwrap();
    let late = b.go(one, Request::of(LOST, 10));
    b.die(one.instance);
    let first = b.claim(run, b.register()).unwrap().unwrap();
    let retry = b.go(first, Request::of(LOST, 10));
    for (actor, seq) in [(one, late), (first, retry)] {
        b.settle(actor, seq, Close::Done(bill(5))).unwrap();
    }
    b.delivered(run, retry, first.attempt);
    let second = b.claim(run, first.instance).unwrap().unwrap();
    assert_eq!(b.admit(second, Request::of(LOST, 10), &[]), Ok(Admission::Replay { seq: retry }));
    b.replayed(run, retry, second.attempt);
    b.go(second, Request::of(OTHER, 10));
}

// Bug: two calls that a provider reported 2^63 tokens for made `spend` fail for the whole store. Consequence: no account
// of any run. Cause: sums of 64 bits overflowed.
#[test]
fn a_report_beyond_reason_is_charged_the_most_that_a_call_can_be() {
    let (b, run, _, actor) = bench(Limits::default());
    for prompt in 0..3 {
        let usage = Usage { output: u64::MAX, ..Usage::default() };
        let (tier, price_hash) = (ServiceTier::Standard, "bench".into());
        let bill = Bill::Usage { usage, tier, cost_nano_usd: i64::MAX, price_hash };
        let seq = b.go(actor, Request::of(prompt, 10));
        b.settle(actor, seq, Close::Done(bill)).unwrap();
        assert_eq!(b.entry(run, seq).call.unwrap().usage, Some(usage), "the report itself is kept");
    }
    b.check();
    let total = spend(&b.store, &[], Micros(0), Micros(i64::MAX)).unwrap().total;
    assert_eq!((total.spent_nano_usd, total.tokens), (3 * MOST_PER_CALL, 3 * MOST_PER_CALL));
}

// Bug: `journal --divergence` named another recorded call once a later life had taken it. Consequence: a person was shown
// the difference of two requests that have nothing to do with each other. Cause: an answer remembers its last taker only,
// and one that nobody took since was preferred.
#[test]
fn the_call_that_a_new_one_replaced_stays_named_after_a_later_life() {
    let (b, run, instance, first) = bench(Limits::default());
    let recorded: Vec<Seq> = (0..3).map(|prompt| b.go(first, Request::of(prompt, 10))).collect();
    for seq in &recorded {
        b.settle(first, *seq, Close::Done(bill(5))).unwrap();
        b.delivered(run, *seq, first.attempt);
    }
    // Each life goes on a call further before it asks something new.
    for taken in 1..3 {
        let life = b.claim(run, instance).unwrap().unwrap();
        for (prompt, seq) in (0..).zip(&recorded[..taken]) {
            b.admit(life, Request::of(prompt, 10), &[]).unwrap();
            b.replayed(run, *seq, life.attempt);
        }
        let new = b.go(life, Request::of(10 + taken as u8, 10));
        b.settle(life, new, Close::Failed(Bill::Nothing)).unwrap();
    }
    let attempts = b.store.attempts(run).unwrap();
    let told = partings(&attempts, || entries::each(&b.store, run)).unwrap();
    let replaced: Vec<_> = told.iter().map(|p| p.recorded.as_ref().map(|e| e.seq)).collect();
    assert_eq!(replaced, [Some(recorded[1]), Some(recorded[2])]);
}

// Bug: who wanted the newest entries gathered all of them. Consequence: `show` and `journal RUN ENTRY --diff` of a million
// entries took 1.3 GB. Cause: entries could be read forwards alone.
#[test]
fn entries_are_read_backwards_in_chunks_that_leave_none_out() {
    let (b, run, _, first) = bench(Limits::default());
    for call in 0..2_100 {
        let seq = b.go(first, Request::of((call % 200) as u8, 10));
        b.settle(first, seq, Close::Failed(Bill::Nothing)).unwrap();
    }
    let seqs = |entries: &mut dyn Iterator<Item = Result<Entry, crate::store::Error>>| -> Vec<i64> {
        entries.map(|entry| entry.unwrap().seq.0).collect()
    };
    let mut all = seqs(&mut entries::each(&b.store, run));
    assert_eq!(all.len(), 2_100);
    all.reverse();
    assert_eq!(seqs(&mut entries::each_back(&b.store, run, Seq(2_101))), all);
    assert_eq!(seqs(&mut entries::each_back(&b.store, run, Seq(4))), [3, 2, 1]);
    assert_eq!(seqs(&mut entries::each_back(&b.store, run, Seq(1))), Vec::<i64>::new());
}

impl Bench {
    fn status(&self, run: RunNo) -> &'static str {
        self.store.run(run).unwrap().unwrap().run.status.name()
    }
}
