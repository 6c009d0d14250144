//! Tries of one call that a proxy makes itself: what is held, noted and charged between two.

use outlast_core::{
    engine::{
        call::settle::{Close, Retry},
        run::process::Swept,
    },
    envelope::unit::Unit,
    journal::{Opening, State},
    run::InDoubt,
    words::id::Seq,
};

use crate::{agent::*, stage::Stage};

fn agent(s: &Stage) -> Agent {
    s.process("p").claim(s.run("r").cost(10_000).create())
}

impl Agent {
    fn noting(&self, seq: Seq, tries: &[Option<u16>], resting: bool) -> Retry {
        Retry { opening: self.opening(seq), tries: tries.to_vec(), resting }
    }

    /// Records that these tries failed, and that the call rests before the next one.
    #[track_caller]
    fn rests(&self, seq: Seq, tries: &[Option<u16>]) {
        assert!(self.ask(self.noting(seq, tries, true)).unwrap());
    }

    /// The next try leaves.
    #[track_caller]
    fn tries_again(&self, seq: Seq, tries: &[Option<u16>]) -> bool {
        self.ask(self.noting(seq, tries, false)).unwrap()
    }
}

pub fn a_call_holds_its_reservation_between_its_tries_and_is_charged_once(s: &Stage) {
    let a = agent(s);
    let seq = a.call("x");
    a.rests(seq, &[None]);
    assert_eq!(s.money(a.run), (FULL, 0, 0));
    assert!(a.tries_again(seq, &[None]));
    a.rests(seq, &[None, Some(429)]);
    assert!(a.tries_again(seq, &[None, Some(429)]));
    assert_eq!(s.money(a.run), (FULL, 0, 0));
    a.done(seq, 120);
    assert_eq!((s.money(a.run), s.spent(a.run, Unit::Calls)), ((0, 0, 120), 1));
    let call = s.entry(a.run, seq).call.unwrap();
    assert_eq!((call.tries, call.resting), (vec![None, Some(429)], false));
    // Closed is closed.
    s.refuses("already_settled", a.noting(seq, &[], false));
}

pub fn a_call_that_is_given_up_tells_its_earlier_tries(s: &Stage) {
    let a = agent(s);
    let seq = a.call("x");
    a.rests(seq, &[Some(503), Some(429)]);
    a.failed(seq);
    let call = s.entry(a.run, seq).call.unwrap();
    // The last one's status is the call's own.
    assert_eq!((call.tries, call.resting), (vec![Some(503)], false));
}

pub fn a_death_between_two_tries_leaves_nothing_in_doubt(s: &Stage) {
    for (i, (tries, state, calls)) in [
        (vec![None], State::Void, 0),
        (vec![None, None], State::Void, 0),
        (vec![Some(429)], State::Failed, 1),
        (vec![Some(429), None], State::Failed, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let a = s.process("p").claim(s.run(&format!("r{i}")).cost(10_000).create());
        let seq = a.call("x");
        a.rests(seq, &tries);
        s.reopen();
        assert_eq!(a.process.dies().unknown_calls, 0, "{tries:?}");
        let entry = s.entry(a.run, seq);
        assert_eq!((entry.state, entry.retried_by), (state, None), "{tries:?}");
        assert_eq!((s.money(a.run), s.spent(a.run, Unit::Calls)), ((0, 0, 0), calls), "{tries:?}");
        // Whoever asks again begins anew.
        let next = s.process("next").claim(a.run);
        next.buys("x", 5);
    }
}

pub fn a_death_behind_a_try_that_left_leaves_it_unknown(s: &Stage) {
    let a = agent(s);
    let seq = a.call("x");
    a.rests(seq, &[Some(429)]);
    assert!(a.tries_again(seq, &[Some(429)]));
    let swept = a.process.dies();
    assert_eq!(swept, Swept { unknown_calls: 1, ..swept.clone() });
    assert_eq!((s.entry(a.run, seq).state, s.money(a.run)), (State::Unknown, (FULL, FULL, 0)));
}

pub fn a_retry_of_a_lost_call_that_dies_between_its_tries_gives_back_what_it_took(s: &Stage) {
    let run = s.run("r").cost(FULL).in_doubt(InDoubt::AsRetry).create();
    let a = s.process("p").claim(run);
    let lost = a.call("x");
    a.lost(lost);
    let retry = a.call("x");
    a.rests(retry, &[Some(529)]);
    a.process.dies();
    assert_eq!((s.entry(run, lost).state, s.entry(run, retry).state), (State::Unknown, State::Failed));
    assert_eq!(s.money(run), (FULL, FULL, 0));
    // And the next one takes it over.
    let next = s.process("next").claim(run);
    let seq = next.call("x");
    assert_eq!(s.entry(run, seq).call.unwrap().retry_of, Some(lost));
}

pub fn a_call_in_a_step_that_dies_between_its_tries_charges_the_step_nothing(s: &Stage) {
    let a = agent(s);
    let step = a.begins("plan");
    let inner = Agent { within: Some(step), ..a.clone() };
    let seq = inner.call("x");
    a.rests(seq, &[Some(429)]);
    a.process.dies();
    assert_eq!((s.entry(a.run, seq).state, s.entry(a.run, step).spent.cost()), (State::Failed, 0));
    assert_eq!(s.entry(a.run, step).spent[Unit::Calls], 1);
}

pub fn no_try_leaves_in_a_run_that_is_over(s: &Stage) {
    use outlast_core::engine::run::tell::{Tell, Word};
    for (i, word) in [Word::Stop, Word::Cancel { reason: None }, Word::Complete].into_iter().enumerate() {
        let a = s.process("p").claim(s.run(&format!("r{i}")).cost(10_000).create());
        let seq = a.call("x");
        a.rests(seq, &[Some(429)]);
        s.ask(Tell { run: a.run, word: word.clone() }).unwrap();
        assert!(!a.tries_again(seq, &[Some(429)]), "{word:?}");
        // The call still rests: a death now leaves nothing in doubt.
        assert!(s.entry(a.run, seq).call.unwrap().resting, "{word:?}");
        a.ask(a.settle(seq, Close::Failed(outlast_core::engine::call::settle::Bill::Nothing))).unwrap();
    }
}

pub fn only_its_own_process_tries_a_call_again(s: &Stage) {
    let a = agent(s);
    let seq = a.call("x");
    let other = s.process("other");
    s.refuses(
        "already_taken",
        Retry { opening: Opening { instance: other.no, ..a.opening(seq) }, ..a.noting(seq, &[None], false) },
    );
    s.refuses("unknown_entry", a.noting(Seq(99), &[None], false));
    let step = a.begins("s");
    s.refuses("unknown_entry", a.noting(step, &[None], false));
    a.process.dies();
    s.refuses("already_settled", a.noting(seq, &[None], false));
}

pub fn no_try_leaves_after_the_wall_time(s: &Stage) {
    let a = s.process("p").claim(s.run("r").limit(Unit::WallMs, 1_000).create());
    let seq = a.call("x");
    a.rests(seq, &[Some(429)]);
    s.advance_ms(1_000);
    assert!(!a.tries_again(seq, &[Some(429)]));
}
