//! Runs that are carried from one store to another, with all that they did, know and may still spend.

use outlast_core::{
    engine::{
        run::{
            end_attempt::Then,
            import::{Import, Imported, Whole},
            leave::Move,
            start::Snapshot,
        },
        state::put::{Change, Put},
        step::Step,
    },
    envelope::{
        Moved,
        unit::{Limits, Unit},
    },
    journal::Role,
    reads::{self, forks::Point, whole},
    run::{instance::Identity, status::Status},
    state::Name,
    store::state::EventRange,
    words::{
        digest::Digest,
        id::{RunId, RunNo, Seq},
    },
};

use crate::{
    bed::Sqlite,
    budgets,
    stage::{Stage, audit},
};

fn fence(s: &Stage, run: RunNo, to: Option<&str>) -> Vec<RunNo> {
    let (family, seen) = whole::family(&*s.store(), s.view(run)).unwrap();
    let runs: Vec<RunNo> = family.iter().map(|view| view.run.no).collect();
    let to = to.map(|bundle| Moved::begun(bundle.into(), None));
    assert!(s.ask(Move { runs: runs.clone(), seen, to }).unwrap());
    runs
}

fn wholes(s: &Stage, runs: &[RunNo]) -> Vec<Whole> {
    runs.iter().map(|no| whole::read(&*s.store(), s.view(*no)).unwrap()).collect()
}

fn import(runs: Vec<Whole>, bundle: Option<&str>) -> Import {
    let bundle = bundle.map(|bundle| Digest::of(bundle.as_bytes()));
    Import { runs, identity: Identity::default(), bundle }
}

/// What a run is, without the numbers that a store gives.
fn told(s: &Stage, run: RunNo) -> String {
    let whole = whole::read(&*s.store(), s.view(run)).unwrap();
    let mut out = format!("{:?}\n{:?}\n", whole.envelope.limits, whole.envelope.spent);
    for a in &whole.attempts {
        out += &format!("{:?} {:?} {:?} {:?}\n", a.no, a.started_at, a.ended_at, a.exit);
    }
    for e in &whole.entries {
        out += &format!("{:?} {:?} {:?} {:?} {:?}\n", e.seq, e.kind, e.state, e.key, e.spent);
    }
    for (seq, role, payload) in &whole.payloads {
        out += &format!("{seq:?} {role:?} {:?}\n", payload.decode().unwrap().len());
    }
    for version in &whole.versions {
        let i = &version.item;
        out +=
            &format!("{:?} {:?} {:?} {:?} {:?}\n", i.key, i.version, i.value, i.commit, version.transaction);
    }
    out + &format!("{:?} {:?}", whole.namespace, whole.snapshots)
}

/// A run with a long and a short result, a paid and a lost call, state with history, a snapshot, and a fork.
fn makes(s: &Stage, id: &str) -> (RunNo, RunNo) {
    let a = s.process("p").claim(s.run(id).cost(10_000).tag("team", "search").create());
    for (key, value) in [("short", "a page".to_owned()), ("long", noise(3 << 20))] {
        let seq = a.begins(key);
        a.ask(a.record(seq, &value)).unwrap();
    }
    a.buys("ask", 70);
    let lost = a.call("lost");
    a.lost(lost);
    for value in ["one", "two"] {
        let change = Change::set(Name::new(format!("run:{id}"), "agent", "k"), value.as_bytes());
        let transaction = Some(format!("{id}-{value}").into());
        a.ask(Put { actor: Some((a.actor(), a.slot)), changes: vec![change], transaction }).unwrap();
    }
    let gone = Change::delete(Name::new(format!("run:{id}"), "agent", "gone"));
    a.ask(Put { actor: Some((a.actor(), a.slot)), changes: vec![gone], transaction: None }).unwrap();
    let own = RunId::new(id).unwrap();
    s.ask(Snapshot { run: a.run, id: own, name: "here".into() }).unwrap();
    let open = a.begins("open");
    assert_ne!(open, Seq(0));
    a.ends(Then::Interrupt { by_person: true });
    let fork = RunId::new(&format!("{id}-fork")).unwrap();
    let fork =
        reads::forks::prepare(&*s.store(), a.run, &Point::Name("here".into()), fork, Limits::default());
    (a.run, s.ask(fork.unwrap()).unwrap().run)
}

/// Text that does not compress, so that it is stored in parts.
fn noise(len: usize) -> String {
    let mut seed = 1_u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b'!' + (seed >> 33) as u8 % 90)
    };
    (0..len).map(|_| next()).collect()
}

/// `from` → `to`.
fn carried(from: &Stage, to: &Stage, id: &str) {
    let (run, fork) = makes(from, id);
    let (before, money) = (told(from, run), from.money(run));
    let family = fence(from, run, Some("/b"));
    assert_eq!(family, [run, fork]);
    let runs = wholes(from, &family);
    let Imported::Now(there) = to.ask(import(runs.clone(), Some(id))).unwrap() else { panic!("{id}") };
    to.reopen();
    assert_eq!(told(to, there), before);
    assert_eq!((to.money(there), to.status(there)), (money, Status::Interrupted));
    assert_eq!((from.status(run), from.halt(run).as_deref()), (Status::Halted, Some("moved")));
    let child = to.row(RunNo(there.0 + 1));
    assert_eq!((child.parent, child.origins[0].run), (Some(there), there));
    let shared = to.store().payload(child.no, Seq(1), Role::Value).unwrap().unwrap();
    assert_eq!(&shared.decode().unwrap()[..], b"a page");
    assert_eq!(to.ask(import(runs.clone(), Some(id))).unwrap(), Imported::Before);
    to.refuses("run_exists", import(runs, None));
    // It goes on: nothing is bought or done again, and the lost call's retry inherits what is held.
    let a = to.process("q").claim(there);
    assert!(matches!(a.ask(a.step("short")).unwrap(), Step::Done { seq: Seq(1) }));
    assert!(matches!(a.ask(a.step("long")).unwrap(), Step::Done { seq: Seq(2) }));
    a.request("ask").replays();
    let retry = a.call("lost");
    a.done(retry, 30);
    let (reserved, doubt, _) = to.money(there);
    assert_eq!((reserved, doubt), (0, 0), "the retry has settled what was in doubt");
    let name = Name::new(format!("run:{id}"), "agent", "k");
    let change = Change::set(name, b"three").expecting(2);
    a.ask(Put { actor: Some((a.actor(), a.slot)), changes: vec![change], transaction: None }).unwrap();
    let namespace = format!("run:{id}");
    let range = EventRange { namespace, agent: "agent".into(), limit: 9, ..EventRange::default() };
    let versions = to.store().state_events(&range).unwrap().events;
    assert_eq!(versions.last().map(|v| (v.item.version, v.item.commit)), Some((3, 4)));
    a.begins("open");
    from.refuses("run_halted", from.process("late").claiming(run));
    // Taken back, it would go on where it was.
    fence(from, run, None);
    assert_eq!(from.status(run), Status::Interrupted);
}

pub fn a_run_is_carried_to_another_store_and_back_with_all_that_belongs_to_it(s: &Stage) {
    let other = Stage::on(Sqlite::new());
    other.run("first").create();
    carried(s, &other, "r");
    carried(&other, s, "q");
    audit(&*other.store());
}

pub fn a_run_that_works_or_has_lost_children_is_not_carried(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let child = s.process("c").claim(s.run("child").under(a.run).create());
    child.buys("x", 5);
    s.refuses("run_held", Move { runs: vec![a.run], seen: child.run, to: Some(moved()) });
    child.ends(Then::Complete);
    a.ends(Then::Complete);
    let other = Stage::on(Sqlite::new());
    other.refuses("run_not_whole", import(wholes(s, &[a.run]), Some("b")));
    other.ask(import(wholes(s, &[a.run, child.run]), Some("b"))).unwrap();
}

fn moved() -> Moved {
    Moved::begun("/b".into(), None)
}

pub fn a_carried_run_is_under_the_named_budgets_of_its_new_store(s: &Stage) {
    let other = Stage::on(Sqlite::new());
    let run = other.run("r").tag("team", "a").create();
    let whole = wholes(&other, &fence(&other, run, Some("/b")));
    budgets::set(s, "search", Unit::CostNanoUsd, 5_000);
    let Imported::Now(there) = s.ask(import(whole, Some("b"))).unwrap() else { panic!("once") };
    assert_eq!(s.row(there).budgets.len(), 1);
}
