//! Items of a batch job: each is run once, and what was cut off goes on.

use std::collections::BTreeMap;

use outlast_core::{
    engine::{
        call::settle::Close,
        item::{ClaimItem, ItemEnd, RecordItem, ResetItem, ReturnItem, SpareItem},
        run::end_attempt::Then,
        step::{NextTry, Step},
    },
    envelope::unit::Unit,
    journal::{
        Role, State,
        job::{ItemClaim, ItemRow, ItemRun, OnChange, Standing},
        payload::Payload,
        scope,
    },
    reads::entries,
    run::status::Status,
    store::{Page, Sought},
    words::{
        digest::Digest,
        id::{RunNo, Seq, Slot},
    },
};

use crate::{
    agent::*,
    stage::{NewRun, Process, Stage},
};

impl NewRun {
    pub fn job(mut self) -> Self {
        self.start.spec.job = Some("job".into());
        self
    }
}

impl Process {
    /// A worker in a slot of its own.
    pub fn works(&self, run: RunNo) -> Agent {
        self.claim_by(outlast_core::engine::run::claim::Claim { slot: Slot::ANY, ..self.claiming(run) })
    }
}

impl Agent {
    pub fn claiming_item(&self, key: &str) -> ClaimItem {
        ClaimItem {
            actor: self.actor(),
            slot: self.slot,
            key: key.into(),
            index: 0,
            content: None,
            version: None,
            on_change: OnChange::Rerun,
            on_version: OnChange::Rerun,
            alone: false,
        }
    }

    #[track_caller]
    pub fn item(&self, key: &str) -> ItemRun {
        match self.ask(self.claiming_item(key)).unwrap() {
            ItemClaim::Run(run) => run,
            other => panic!("wanted to run item {key}, had {other:?}"),
        }
    }

    /// The same agent in an item.
    pub fn in_item(&self, key: &str, item: &ItemRun) -> Agent {
        let scope = scope::item_calls(key, item.try_no);
        Agent { scope, within: Some(item.opening.seq), ..self.clone() }
    }

    pub fn ending_item(&self, seq: Seq, end: ItemEnd) -> RecordItem {
        RecordItem { opening: self.opening(seq), end, changes: Vec::new() }
    }

    #[track_caller]
    pub fn item_done(&self, seq: Seq, value: &str) -> Standing {
        let end = ItemEnd::Done(Payload::encode(value.as_bytes()));
        self.ask(self.ending_item(seq, end)).unwrap().standing
    }

    #[track_caller]
    pub fn item_failed(&self, seq: Seq) -> Standing {
        let end = ItemEnd::Failed(Payload::encode(b"ValueError"));
        self.ask(self.ending_item(seq, end)).unwrap().standing
    }

    pub fn giving_back(&self, seq: Seq) -> ReturnItem {
        ReturnItem { opening: self.opening(seq) }
    }

    pub fn next_try(&self, seq: Seq) -> NextTry {
        NextTry { actor: self.actor(), slot: self.slot, opening: self.opening(seq) }
    }
}

pub fn worker(s: &Stage) -> Agent {
    s.process("p").works(s.run("r").job().create())
}

/// A new process works on the job, the one before being gone.
pub fn next(s: &Stage, old: &Agent) -> Agent {
    s.process("next").works(old.run)
}

fn newest(s: &Stage, run: RunNo, key: &str) -> ItemRow {
    ItemRow::of(&s.store().newest(run, &Sought::item(key)).unwrap().unwrap()).unwrap()
}

fn standing(s: &Stage, run: RunNo, key: &str) -> Standing {
    newest(s, run, key).detail.standing
}

pub fn ended(seq: Seq, standing: Standing) -> ItemClaim {
    ItemClaim::Ended { seq, standing }
}

/// The job's counts are those of its items.
pub fn check_counts(s: &Stage, run: RunNo) {
    let counts = s.row(run).job.unwrap().counts;
    let items = s.store().items(run, &Page::new(Seq(0), 1 << 20)).unwrap();
    for standing in Standing::ALL {
        let there = items.iter().filter(|(i, _)| i.detail.standing == standing).count() as i64;
        assert_eq!(counts.of(standing), there, "{}", standing.name());
    }
    assert_eq!(counts.total(), items.len() as i64);
}

pub fn a_finished_item_is_not_run_again(s: &Stage) {
    let old = worker(s);
    let item = old.item("a");
    assert_eq!((item.try_no, item.tries, item.continued, item.deaths), (1, 1, false, 0));
    assert_eq!(old.item_done(item.opening.seq, "result"), Standing::Done);
    old.process.dies();
    s.reopen();
    let new = next(s, &old);
    assert_eq!(new.ask(new.claiming_item("a")).unwrap(), ended(item.opening.seq, Standing::Done));
    let (row, value) = s.store().items(new.run, &Page::new(Seq(0), 10).with_values()).unwrap().remove(0);
    assert_eq!((row.key.as_str(), row.detail.standing), ("a", Standing::Done));
    assert_eq!(value.unwrap().decode().unwrap(), &b"result"[..]);
}

pub fn an_item_that_runs_is_held_against_every_other_worker(s: &Stage) {
    let a = worker(s);
    let item = a.item("a");
    let held = ItemClaim::Held { seq: item.opening.seq };
    assert_eq!(a.ask(a.claiming_item("a")).unwrap(), held, "another thread of the same worker");
    let sibling = a.process.works(a.run);
    assert_eq!(sibling.ask(sibling.claiming_item("a")).unwrap(), held);
    let other = next(s, &a);
    assert_eq!(other.ask(other.claiming_item("a")).unwrap(), held);
    a.item_done(item.opening.seq, "x");
    assert_eq!(other.ask(other.claiming_item("a")).unwrap(), ended(item.opening.seq, Standing::Done));
}

pub fn an_item_whose_process_died_goes_on_with_its_try(s: &Stage) {
    let old = worker(s);
    let item = old.item("a");
    old.ask(old.next_try(item.opening.seq)).unwrap();
    old.process.dies();
    assert_eq!(s.row(old.run).error.as_deref(), Some("the process that worked on it died"));
    let new = next(s, &old);
    assert_eq!(s.row(old.run).error, None, "it goes on");
    let again = new.item("a");
    assert_eq!((again.opening.seq, again.try_no, again.tries), (item.opening.seq, 2, 2));
    assert_eq!((again.continued, again.deaths), (true, 1));
    s.refuses("already_taken", old.ending_item(item.opening.seq, ItemEnd::Skipped { reason: "late".into() }));
    new.item_done(item.opening.seq, "x");
    check_counts(s, new.run);
}

pub fn an_item_of_a_process_that_left_counts_no_death(s: &Stage) {
    let old = worker(s);
    old.item("a");
    old.process.leaves();
    let again = next(s, &old).item("a");
    assert_eq!((again.continued, again.deaths), (true, 0));
}

pub fn an_item_of_an_ended_attempt_moves_without_a_death(s: &Stage) {
    let old = worker(s);
    let item = old.item("a");
    old.ends(Then::Interrupt { by_person: false });
    let new = old.process.works(old.run);
    let again = new.item("a");
    assert_eq!((again.opening.seq, again.continued, again.deaths), (item.opening.seq, true, 0));
}

pub fn an_item_that_was_open_at_three_deaths_is_dead(s: &Stage) {
    let mut a = worker(s);
    let seq = a.item("a").opening.seq;
    a.process.dies();
    a = next(s, &a);
    assert_eq!(a.item("a").deaths, 1);
    a.process.dies();
    a = next(s, &a);
    let suspect = ItemClaim::Suspect { seq, deaths: 2 };
    assert_eq!(a.ask(a.claiming_item("a")).unwrap(), suspect);
    assert_eq!(a.ask(a.claiming_item("a")).unwrap(), suspect, "asking changes nothing");
    let alone = |a: &Agent| ClaimItem { alone: true, ..a.claiming_item("a") };
    let ItemClaim::Run(last) = a.ask(alone(&a)).unwrap() else { panic!("not claimed") };
    assert_eq!((last.opening.seq, last.deaths), (seq, 2));
    // Given back, it is still on its last try.
    a.ask(a.giving_back(seq)).unwrap();
    assert_eq!(a.ask(a.claiming_item("a")).unwrap(), suspect);
    a.ask(alone(&a)).unwrap();
    a.process.dies();
    a = next(s, &a);
    assert_eq!(a.ask(alone(&a)).unwrap(), ended(seq, Standing::Dead));
    assert_eq!(a.ask(alone(&a)).unwrap(), ended(seq, Standing::Dead));
    let row = newest(s, a.run, "a");
    assert_eq!(row.detail.reason.as_deref(), Some("its process died 3 times while it ran"));
    check_counts(s, a.run);
}

pub fn a_job_without_a_price_is_halted_until_its_program_begins_again(s: &Stage) {
    let job = s.run("r").job().cost(10_000).create();
    let first = s.process("p").works(job);
    assert_eq!(first.request("x").unpriced().refused().code, "price_unknown");
    assert_eq!((s.status(job), s.halt(job).as_deref()), (Status::Halted, Some("price_unknown")));
    // Its program may have been given a price by now.
    let next = s.process("q").works(job);
    assert_eq!((s.status(job), s.halt(job)), (Status::Running, None));
    next.call("a priced one");
}

pub fn an_item_given_back_goes_on_with_its_try(s: &Stage) {
    let a = worker(s);
    let item = a.item("a");
    a.ask(a.giving_back(item.opening.seq)).unwrap();
    s.refuses("already_taken", a.giving_back(item.opening.seq));
    assert_eq!(s.entry(a.run, item.opening.seq).state, State::Open);
    let other = next(s, &a);
    let again = other.item("a");
    assert_eq!((again.opening.seq, again.try_no, again.tries), (item.opening.seq, 1, 1));
    assert_eq!((again.continued, again.deaths), (true, 0));
}

pub fn a_failed_item_runs_again_at_the_next_start_and_is_dead_after_three(s: &Stage) {
    let mut a = worker(s);
    for (start, becomes) in [(1, Standing::Failed), (2, Standing::Failed), (3, Standing::Dead)] {
        let item = a.item("a");
        assert_eq!((item.try_no, item.tries), (start, 1), "each start tries anew");
        assert_eq!(a.item_failed(item.opening.seq), becomes);
        let not_again = a.ask(a.claiming_item("a")).unwrap();
        assert_eq!(not_again, ended(item.opening.seq, becomes), "it is not run again in this start");
        a.ends(Then::Interrupt { by_person: false });
        a = next(s, &a);
    }
    assert!(matches!(
        a.ask(a.claiming_item("a")).unwrap(),
        ItemClaim::Ended { standing: Standing::Dead, .. }
    ));
    assert_eq!(s.journal(a.run).len(), 3, "each failure is kept");
    check_counts(s, a.run);
}

/// Bug: three starts without a key left items dead. Consequence: nothing ran them again once the key was there. Cause: each
/// failure counted against its item, also one that was no fault of the item's.
/// Bug: items whose answers broke off in an outage were paid twice in one start, and nobody was told. Cause: an item that
/// failed while its provider was away was given back, whatever had become of its calls.
pub fn a_try_that_was_paid_in_vain_is_known(s: &Stage) {
    let a = worker(s);
    let check = |key: &str, wanted: bool, act: &dyn Fn(&Agent)| {
        let item = a.item(key);
        act(&a.in_item(key, &item));
        let had = entries::has_paid_in_vain(&*s.store(), a.run, item.opening.seq).unwrap();
        assert_eq!(had, wanted, "{key}");
        item
    };
    let cut_off = |a: &Agent, text: &str| {
        let seq = a.call(text);
        a.free(seq);
        a.ask(a.settle(seq, Close::Failed(bill(7)))).unwrap();
    };
    check("answered", false, &|a| {
        a.buys("one", 10);
    });
    check("refused", false, &|a| {
        a.failed(a.call("one"));
    });
    check("never sent", false, &|a| {
        a.void(a.call("one"));
    });
    check("lost", true, &|a| {
        a.lost(a.call("one"));
    });
    check("lost and asked again", false, &|a| {
        a.lost(a.call("one"));
        a.buys("one", 10);
    });
    let item = check("cut off", true, &|a| cut_off(a, "one"));
    a.ask(a.next_try(item.opening.seq)).unwrap();
    check("cut off in a step", true, &|a| {
        let steps = a.within(&scope::item_steps("cut off in a step", 0));
        let (_, _, fetch) = steps.tries("fetch");
        cut_off(&fetch, "one");
    });
    let had = entries::has_paid_in_vain(&*s.store(), a.run, item.opening.seq).unwrap();
    assert!(!had, "its next try has not asked");
}

pub fn a_spared_failure_does_not_count_against_its_item(s: &Stage) {
    let mut a = worker(s);
    let run = a.run;
    let spare = |seq| SpareItem { run, key: "a".into(), seq };
    let counted = |a: &Agent| newest(s, a.run, "a").detail.failed_starts;
    for (start, counts) in [(1, 1), (2, 2), (3, 2), (4, 2)] {
        let seq = a.item("a").opening.seq;
        assert_eq!(s.ask(spare(seq)).unwrap(), Standing::Open, "it runs");
        let dead = start > 2;
        assert_eq!(a.item_failed(seq), if dead { Standing::Dead } else { Standing::Failed });
        if dead {
            assert_eq!(s.ask(spare(seq)).unwrap(), Standing::Failed);
            assert_eq!(
                s.ask(spare(Seq(seq.0 - 1))).unwrap(),
                Standing::Failed,
                "an earlier one stays as it is"
            );
        }
        assert_eq!((counted(&a), standing(s, a.run, "a")), (counts, Standing::Failed));
        check_counts(s, a.run);
        a.ends(Then::Interrupt { by_person: false });
        a = next(s, &a);
    }
    let seq = a.item("a").opening.seq;
    a.item_done(seq, "x");
    assert_eq!(s.ask(spare(seq)).unwrap(), Standing::Done);
    s.refuses("unknown_item", SpareItem { run: a.run, key: "none".into(), seq });
}

pub fn time_in_which_two_workers_work_counts_once_for_their_job(s: &Stage) {
    let a = worker(s);
    let b = next(s, &a);
    let worked = || s.row(a.run).job.unwrap().counts.worked_ms;
    a.pulse(60_000);
    assert_eq!(worked(), 60_000);
    b.pulse(60_000);
    assert!(worked() < 120_000, "{} ms", worked());
}

pub fn a_job_that_its_program_left_keeps_why_until_it_goes_on(s: &Stage) {
    let a = worker(s);
    let mut end = a.ending(Then::Interrupt { by_person: false });
    end.exit.why = Some("20 items failed alike".into());
    assert_eq!(a.ask(end).unwrap(), Status::Interrupted);
    assert_eq!(s.row(a.run).why().as_deref(), Some("20 items failed alike"));
    next(s, &a).ends(Then::Complete);
    assert_eq!(s.row(a.run).why(), None);
}

pub fn an_item_that_a_live_sibling_failed_is_not_run_again(s: &Stage) {
    let a = worker(s);
    let other = next(s, &a);
    let item = a.item("a");
    a.item_failed(item.opening.seq);
    assert_eq!(other.ask(other.claiming_item("a")).unwrap(), ended(item.opening.seq, Standing::Failed));
}

pub fn a_skipped_item_is_a_tombstone(s: &Stage) {
    let a = worker(s);
    let seq = a.item("a").opening.seq;
    a.ask(a.ending_item(seq, ItemEnd::Skipped { reason: "empty".into() })).unwrap();
    a.ends(Then::Interrupt { by_person: false });
    let new = next(s, &a);
    assert_eq!(new.ask(new.claiming_item("a")).unwrap(), ended(seq, Standing::Skipped));
    let (row, value) = s.store().items(a.run, &Page::new(Seq(0), 10).with_values()).unwrap().remove(0);
    assert_eq!((row.detail.reason.as_deref(), value), (Some("empty"), None));
    check_counts(s, a.run);
}

fn content(text: &str) -> Option<Digest> {
    Some(Digest::of(text.as_bytes()))
}

pub fn an_item_with_other_content_runs_again_and_its_old_result_is_history(s: &Stage) {
    let a = worker(s);
    let ask = |text, on_change| {
        a.ask(ClaimItem { content: content(text), on_change, ..a.claiming_item("a") }).unwrap()
    };
    let ItemClaim::Run(old) = ask("one", OnChange::Rerun) else { panic!("not claimed") };
    a.item_done(old.opening.seq, "first");
    assert_eq!(ask("one", OnChange::Fail), ended(old.opening.seq, Standing::Done));
    assert_eq!(ask("two", OnChange::Keep), ended(old.opening.seq, Standing::Done));
    assert_eq!(ask("two", OnChange::Fail), ItemClaim::Changed { seq: old.opening.seq });
    let ItemClaim::Run(new) = ask("two", OnChange::Rerun) else { panic!("not claimed") };
    assert_eq!((new.try_no, new.tries, new.continued), (2, 1, false));
    check_counts(s, a.run);
    a.item_done(new.opening.seq, "second");
    assert_eq!(newest(s, a.run, "a").seq, new.opening.seq);
    assert_eq!(s.entry(a.run, old.opening.seq).retried_by, Some(new.opening.seq));
    let value = s.store().payload(a.run, old.opening.seq, Role::Value).unwrap().unwrap();
    assert_eq!(value.decode().unwrap(), &b"first"[..]);
    check_counts(s, a.run);
}

pub fn changed_content_and_code_are_judged_apart(s: &Stage) {
    let a = worker(s);
    let base = |c, v| ClaimItem { content: content(c), version: content(v), ..a.claiming_item("a") };
    let ItemClaim::Run(item) = a.ask(base("c1", "v1")).unwrap() else { panic!("not claimed") };
    a.item_done(item.opening.seq, "x");
    let done = ended(item.opening.seq, Standing::Done);
    let changed = ItemClaim::Changed { seq: item.opening.seq };
    use OnChange::{Fail, Keep};
    for (c, v, on_change, on_version, want) in [
        ("c1", "v1", Fail, Fail, &done),
        ("c2", "v1", Keep, Fail, &done),
        ("c1", "v2", Fail, Keep, &done),
        ("c2", "v2", Keep, Keep, &done),
        ("c2", "v2", Keep, Fail, &changed),
        ("c2", "v2", Fail, Keep, &changed),
    ] {
        let claim = ClaimItem { on_change, on_version, ..base(c, v) };
        assert_eq!(&a.ask(claim).unwrap(), want, "{c} {v} {on_change:?} {on_version:?}");
    }
    let unknown = ClaimItem { on_change: Fail, on_version: Fail, ..a.claiming_item("a") };
    assert_eq!(a.ask(unknown).unwrap(), done, "what is not known did not change");
}

pub fn an_item_that_was_cut_off_with_other_content_is_run_anew(s: &Stage) {
    let old = worker(s);
    let claim = |a: &Agent, text| ClaimItem { content: content(text), ..a.claiming_item("a") };
    let ItemClaim::Run(first) = old.ask(claim(&old, "one")).unwrap() else { panic!("not claimed") };
    old.process.dies();
    let new = next(s, &old);
    let ItemClaim::Run(again) = new.ask(claim(&new, "two")).unwrap() else { panic!("not claimed") };
    assert_eq!((again.opening.seq, again.try_no, again.continued), (first.opening.seq, 2, false));
    assert_ne!(again.steps, first.steps, "steps of the old content do not serve the new");
}

pub fn a_dead_item_with_other_content_runs_again(s: &Stage) {
    let mut a = worker(s);
    let claim = |a: &Agent, text| ClaimItem { content: content(text), ..a.claiming_item("a") };
    for _ in 0..3 {
        let ItemClaim::Run(item) = a.ask(claim(&a, "one")).unwrap() else { panic!("not claimed") };
        a.item_failed(item.opening.seq);
        a.ends(Then::Interrupt { by_person: false });
        a = next(s, &a);
    }
    assert!(matches!(a.ask(claim(&a, "one")).unwrap(), ItemClaim::Ended { standing: Standing::Dead, .. }));
    assert!(matches!(a.ask(claim(&a, "two")).unwrap(), ItemClaim::Run(_)));
    assert_eq!(newest(s, a.run, "a").detail.failed_starts, 0);
    check_counts(s, a.run);
}

pub fn each_try_that_raised_is_a_scope_of_its_own(s: &Stage) {
    let a = worker(s);
    let item = a.item("a");
    let first = a.in_item("a", &item);
    first.buys("ask", 10);
    let try_no = a.ask(a.next_try(item.opening.seq)).unwrap();
    assert_eq!(try_no, 2);
    let second = a.in_item("a", &ItemRun { try_no, ..item.clone() });
    second.buys("ask", 10);
    assert_eq!(a.item_done(item.opening.seq, "x"), Standing::Done);
    let row = newest(s, a.run, "a");
    assert_eq!((row.detail.tries(), row.spent.cost(), row.spent[Unit::Calls]), (2, 20, 2));
}

/// Bug: an item's cost left out what its earlier starts had paid. Consequence: the items' costs were less than the job's.
pub fn an_items_cost_is_that_of_all_its_starts(s: &Stage) {
    let a = worker(s);
    let item = a.item("a");
    a.in_item("a", &item).buys("ask", 10);
    a.item_failed(item.opening.seq);
    a.ends(Then::Interrupt { by_person: false });
    let b = next(s, &a);
    let item = b.item("a");
    b.in_item("a", &item).buys("ask", 5);
    let end = ItemEnd::Done(Payload::encode(b"x"));
    assert_eq!(b.ask(b.ending_item(item.opening.seq, end)).unwrap().spent.cost(), 15);
    b.ask(ResetItem { run: b.run, key: "a".into(), reuse_answers: false }).unwrap();
    let rows = s.store().items(b.run, &Page::new(Seq(0), 9)).unwrap();
    let of = |row: &ItemRow| (row.detail.standing, row.spent.cost(), row.spent[Unit::Calls]);
    assert_eq!(rows.iter().map(|(row, _)| of(row)).collect::<Vec<_>>(), [(Standing::Open, 15, 2)]);
    assert_eq!(of(&newest(s, b.run, "a")), (Standing::Open, 15, 2));
}

pub fn steps_serve_the_later_tries_of_their_item_and_not_another_content(s: &Stage) {
    let a = worker(s);
    let claim = |text| ClaimItem { content: content(text), ..a.claiming_item("a") };
    let ItemClaim::Run(item) = a.ask(claim("one")).unwrap() else { panic!("not claimed") };
    let within =
        |item: &ItemRun| Agent { scope: item.steps.clone(), within: Some(item.opening.seq), ..a.clone() };
    let step = within(&item).begins("fetch");
    a.ask(a.record(step, "page")).unwrap();
    a.ask(a.next_try(item.opening.seq)).unwrap();
    let inside = within(&item);
    assert_eq!(inside.ask(inside.step("fetch")).unwrap(), Step::Done { seq: step });
    a.item_done(item.opening.seq, "x");
    let ItemClaim::Run(again) = a.ask(claim("two")).unwrap() else { panic!("not claimed") };
    assert_ne!(within(&again).begins("fetch"), step);
}

pub fn a_person_resets_items(s: &Stage) {
    let mut a = worker(s);
    let run = a.run;
    let reset = |key: &str| ResetItem { run, key: key.into(), reuse_answers: false };
    let done = a.item("done").opening.seq;
    a.item_done(done, "x");
    for _ in 0..3 {
        let seq = a.item("dead").opening.seq;
        a.item_failed(seq);
        a.ends(Then::Interrupt { by_person: false });
        a = next(s, &a);
    }
    s.refuses("unknown_item", reset("none"));
    for key in ["done", "dead"] {
        let seq = s.ask(reset(key)).unwrap();
        assert_eq!(standing(s, run, key), Standing::Open);
        check_counts(s, run);
        assert_eq!(s.ask(reset(key)).unwrap(), seq, "it is pending already");
        let item = a.item(key);
        assert_eq!((item.opening.seq, item.tries, item.deaths), (seq, 1, 0));
        assert_eq!(a.item_failed(seq), Standing::Failed, "its failures are forgotten");
    }
    check_counts(s, run);
    a.ends(Then::Complete);
    assert_eq!(s.status(run), Status::Completed);
    s.ask(reset("done")).unwrap();
    assert_eq!(s.status(run), Status::Interrupted, "no job is completed that has an item to run");
}

pub fn a_reset_item_replays_its_paid_answers_if_asked(s: &Stage) {
    let old = worker(s);
    for (key, reuse_answers) in [("replayed", true), ("paid again", false)] {
        let item = old.item(key);
        old.in_item(key, &item).buys("ask", 10);
        old.item_done(item.opening.seq, "badly parsed");
        s.ask(ResetItem { run: old.run, key: key.into(), reuse_answers }).unwrap();
    }
    old.ends(Then::Interrupt { by_person: false });
    let new = next(s, &old);
    let item = new.item("replayed");
    new.in_item("replayed", &item).request("ask").replays();
    let item = new.item("paid again");
    new.in_item("paid again", &item).request("ask").goes();
}

pub fn an_item_that_runs_is_not_reset(s: &Stage) {
    let a = worker(s);
    a.item("a");
    s.refuses("item_running", ResetItem { run: a.run, key: "a".into(), reuse_answers: false });
}

pub fn only_its_own_process_ends_an_item(s: &Stage) {
    let a = worker(s);
    let seq = a.item("a").opening.seq;
    let other = next(s, &a);
    s.refuses("already_taken", other.ending_item(seq, ItemEnd::Skipped { reason: "mine".into() }));
    s.refuses("already_taken", other.giving_back(seq));
    s.refuses("unknown_entry", a.ending_item(Seq(99), ItemEnd::Skipped { reason: "?".into() }));
    s.refuses("unknown_entry", a.record(seq, "as if it were a step"));
    a.item_done(seq, "x");
    s.refuses("already_settled", a.giving_back(seq));
}

pub fn an_item_is_claimed_in_a_job_that_runs_only(s: &Stage) {
    let plain = s.process("p").claim(s.run("plain").create());
    s.refuses("not_a_job", plain.claiming_item("a"));
    let a = s.process("q").works(s.run("r").job().limit(Unit::Calls, 0).create());
    let item = a.item("a");
    a.in_item("a", &item).request("ask").refused();
    a.ask(a.giving_back(item.opening.seq)).unwrap();
    s.refuses("run_halted", a.claiming_item("a"));
    s.refuses("run_halted", a.claiming_item("b"));
    assert_eq!(s.status(a.run), Status::Halted);
}

pub fn items_are_read_by_page_each_once(s: &Stage) {
    let a = worker(s);
    let claim = |key: &str, text| ClaimItem { content: content(text), ..a.claiming_item(key) };
    for text in ["one", "two"] {
        for i in 0..5 {
            let ItemClaim::Run(item) = a.ask(claim(&format!("k{i}"), text)).unwrap() else { panic!() };
            a.in_item(&format!("k{i}"), &item).buys("ask", 1);
            a.item_done(item.opening.seq, text);
        }
    }
    let (mut seen, mut after) = (BTreeMap::new(), Seq(0));
    loop {
        let page = s.store().items(a.run, &Page::new(after, 2).with_values()).unwrap();
        let rows = s.store().items(a.run, &Page::new(after, 2)).unwrap();
        assert!(rows.iter().all(|(_, value)| value.is_none()));
        assert_eq!(
            page.iter().map(|p| &p.0).collect::<Vec<_>>(),
            rows.iter().map(|r| &r.0).collect::<Vec<_>>()
        );
        let Some((last, _)) = rows.last() else { break };
        after = last.seq;
        for (row, value) in page {
            assert_eq!(row.spent.cost(), 2, "of both starts");
            let value = value.unwrap().decode().unwrap();
            assert_eq!(seen.insert(row.key, value), None, "an item is read twice");
        }
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.values().all(|v| v == &b"two"[..]), "the newest result counts");
}

pub fn a_result_and_the_state_it_changed_are_recorded_together(s: &Stage) {
    let a = worker(s);
    let seq = a.item("a").opening.seq;
    let end = || ItemEnd::Done(Payload::encode(b"x"));
    let stale = crate::state::expecting(crate::state::change("k", "v"), 3);
    s.refuses("conflict", RecordItem { changes: vec![stale], ..a.ending_item(seq, end()) });
    let changes = vec![crate::state::change("k", "v")];
    a.ask(RecordItem { changes, ..a.ending_item(seq, end()) }).unwrap();
    assert!(s.store().state("ns", "agent", "k").unwrap().is_some());
}

pub fn a_stale_workers_result_that_changes_the_state_is_refused_whole(s: &Stage) {
    let old = worker(s);
    let seq = old.item("a").opening.seq;
    old.ends(Then::Restart);
    let changing = || {
        let changes = vec![crate::state::change("k", "v")];
        RecordItem { changes, ..old.ending_item(seq, ItemEnd::Done(Payload::encode(b"x"))) }
    };
    s.refuses("lease_lost", changing());
    assert!(s.store().state("ns", "agent", "k").unwrap().is_none());
    old.ask(RecordItem { changes: Vec::new(), ..changing() }).unwrap();
}
