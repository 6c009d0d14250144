//! Runs that go, and counts that are put right.

use outlast_core::{
    engine::{forget::Forget, recount::Recount},
    id::{Micros, RunId, RunNo, Seq},
    job::Counts,
    journal::Role,
    op::Then,
};

use crate::stage::Stage;

fn forgets(s: &Stage, run: RunNo) -> bool {
    s.ask(Forget { run, ended_before: Micros(i64::MAX) }).unwrap()
}

pub fn a_run_that_ended_is_forgotten_with_all_that_was_kept_of_it(s: &Stage) {
    let a = s.process("p").claim(s.run("old").create());
    let step = a.begins("fetch");
    a.ask(a.record(step, "page")).unwrap();
    let asked = a.buys("ask", 10);
    let name = outlast_core::state::Name::new("run:old", "agent", "k");
    s.ask(outlast_core::engine::put::Put {
        actor: Some((a.actor(), a.slot)),
        changes: vec![outlast_core::engine::put::Change::set(name, b"v")],
        transaction: None,
    })
    .unwrap();
    a.ends(Then::Complete);
    let other = s.process("q").claim(s.run("other").create());
    let kept = other.begins("fetch");
    other.ask(other.record(kept, "its own")).unwrap();
    assert!(forgets(s, a.run));
    assert!(!forgets(s, a.run), "it is gone");
    s.reopen();
    assert_eq!(s.store().run_no(&RunId::new("old").unwrap()).unwrap(), None);
    for seq in [step, asked] {
        assert_eq!(s.store().entry(a.run, seq).unwrap(), None);
        assert!(
            [Role::Value, Role::Answer].iter().all(|r| s.store().payload(a.run, seq, *r).unwrap().is_none())
        );
    }
    assert_eq!(s.store().attempts(a.run).unwrap(), []);
    assert_eq!(s.store().state("run:old", "agent", "k").unwrap(), None);
    let value = s.store().payload(other.run, kept, Role::Value).unwrap().unwrap();
    assert_eq!(value.decode().unwrap(), &b"its own"[..]);
    assert_eq!(other.begins("more"), Seq(2));
}

pub fn what_can_go_on_is_not_forgotten(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let last = s.run("newest").create();
    assert!(!forgets(s, a.run), "it runs");
    a.ends(Then::Interrupt { by_person: false });
    assert!(!forgets(s, a.run), "it can be resumed");
    let a = a.process.claim(a.run);
    a.ends(Then::Complete);
    assert!(!s.ask(Forget { run: a.run, ended_before: Micros(0) }).unwrap(), "it ended later");
    let b = a.process.claim(last);
    b.ends(Then::Complete);
    assert!(!forgets(s, last), "its number would be given again");
    assert!(forgets(s, a.run));
}

pub fn a_jobs_counts_are_set_while_nobody_works_on_it(s: &Stage) {
    let a = s.process("p").works(s.run("r").job().create());
    let seq = a.item("a").seq;
    a.item_done(seq, "x");
    let seen = s.row(a.run).next_seq;
    let counts = Counts { done: 7, ..Counts::default() };
    let recount = || Recount { run: a.run, seen, counts };
    assert!(!s.ask(recount()).unwrap(), "somebody works on it");
    a.ends(Then::Complete);
    assert!(!s.ask(Recount { seen: Seq(1), ..recount() }).unwrap(), "it went on since");
    assert!(s.ask(recount()).unwrap());
    assert_eq!(s.row(a.run).job.unwrap().counts, counts);
}
