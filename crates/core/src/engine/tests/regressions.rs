//! Defects the simulator found, each with its shortest story.

use crate::{
    engine::{
        call::settle::{Bill, Close},
        op::{Actor, Admission},
        tests::bench::{Bench, Request, bill, usd},
    },
    envelope::unit::Limits,
    journal::State,
    run::Policy,
    words::id::{InstanceNo, RunNo},
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

impl Bench {
    fn status(&self, run: RunNo) -> &'static str {
        use crate::store::Store;
        self.store.run(run).unwrap().unwrap().run.status.name()
    }
}
