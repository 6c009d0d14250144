//! Two handles on one store, as two processes have them: what one commits, the other acts on.

use std::{sync::Arc, thread};

use outlast_core::{
    engine::{
        run::limits::Raise,
        state::put::{Change, Put},
    },
    envelope::unit::{Limits, PerUnit, Unit},
    state::Name,
    store::Store,
    words::id::RunNo,
};

use crate::{
    agent::FULL,
    bed::{Bed, Sqlite},
    beds::{Opened, Postgres},
    stage::{Stage, audit},
};

fn two_handles(bed: &dyn Bed) -> [Stage; 2] {
    [(); 2].map(|()| Stage::on(Opened(bed.open())))
}

/// A raise by one nano-USD. It reads and writes an envelope, which a writer may remember.
fn raise(run: RunNo) -> Raise {
    let mut add = Limits::default();
    add[Unit::CostNanoUsd] = Some(1);
    Raise { run, add, set: Limits::default(), lift: PerUnit::default() }
}

fn each_sees_what_the_other_committed(bed: &dyn Bed) {
    let [a, b] = two_handles(bed);
    let run = a.run("r").cost(FULL).create();
    let agent = a.process("p").claim(run);
    let bought = agent.call("one");
    for _ in 0..20 {
        a.ask(raise(run)).unwrap();
        b.ask(raise(run)).unwrap();
    }
    for s in [&a, &b] {
        assert_eq!(s.envelope(run).limits[Unit::CostNanoUsd], Some(FULL + 40));
        assert_eq!(s.money(run), (FULL, 0, 0));
    }
    // The verdict comes from the other process; this one's next admission knows it.
    b.process("q");
    let heartbeat_seen = b.store().instance(agent.process.no).unwrap().unwrap().heartbeat;
    let verdict = outlast_core::engine::run::process::DeclareDead {
        instance: agent.process.no,
        heartbeat_seen,
        left: false,
        heir: None,
    };
    assert_eq!(b.ask(verdict).unwrap().unknown_calls, 1);
    assert_eq!(agent.request("two").ask().unwrap_err().code(), "instance_dead");
    assert_eq!(a.entry(run, bought).state, outlast_core::journal::State::Unknown);
    audit(&*b.store());
}

fn no_increment_is_lost_between_two_handles(bed: &dyn Bed) {
    const TURNS: i64 = 50;
    let stores: [Arc<dyn Store>; 2] = [bed.open(), bed.open()];
    let change = || Change::set(Name::new("n", "a", "k"), b"v");
    thread::scope(|scope| {
        for store in &stores {
            scope.spawn(move || {
                let s = Stage::on(Opened(store.clone()));
                for _ in 0..TURNS {
                    s.ask(Put { changes: vec![change()], ..Put::default() }).unwrap();
                }
            });
        }
    });
    for store in stores {
        let item = store.state("n", "a", "k").unwrap().unwrap();
        assert_eq!((item.version, item.commit), (2 * TURNS, 2 * TURNS));
    }
}

#[test]
fn each_of_two_sqlite_handles_sees_what_the_other_committed() {
    each_sees_what_the_other_committed(&Sqlite::new());
}

#[test]
fn each_of_two_postgres_handles_sees_what_the_other_committed() {
    each_sees_what_the_other_committed(&Postgres::new());
}

#[test]
fn no_increment_is_lost_between_two_sqlite_handles() {
    no_increment_is_lost_between_two_handles(&Sqlite::new());
}

#[test]
fn no_increment_is_lost_between_two_postgres_handles() {
    no_increment_is_lost_between_two_handles(&Postgres::new());
}
