//! Many callers at once: no limit is passed, and the sums agree.

use std::{
    sync::{
        Barrier, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use outlast_core::{
    engine::{
        call::admit::Admission,
        run::claim::Claimed,
        state::{
            put::{Change, Put},
            transaction::{Conflicts, Transactions},
        },
    },
    envelope::unit::Unit,
    journal::Opening,
    run::status::Status,
    state::{At, Item, Name},
    store::{
        Ask as _, Durability, Error,
        state::{EventRange, Scan},
    },
    words::id::InstanceNo,
};

use crate::{
    agent::*,
    stage::{Process, Stage},
};

const THREADS: usize = 64;

/// Runs `act` in 64 threads that begin together.
pub fn together<T: Send>(act: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|i| {
                let (act, start) = (&act, &start);
                scope.spawn(move || {
                    start.wait();
                    act(i)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Admits and settles until nothing more goes; returns what was charged.
fn spends(a: &Agent, who: usize) -> i64 {
    let mut spent = 0;
    for turn in 0..8 {
        match a.request(&format!("{who}/{turn}")).ask() {
            Ok(Admission::Go { opening: Opening { seq, .. }, cap, .. }) => {
                let cost = 100 + cap.unwrap_or(900).min(500) as i64;
                a.done(seq, cost);
                spent += cost;
            }
            Ok(Admission::Wait { .. }) => {}
            Ok(Admission::Refused(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    spent
}

pub fn sixty_four_threads_never_pass_a_runs_limit(s: &Stage) {
    let a = s.process("p").claim(s.run("r").cost(100 * FULL).limit(Unit::Tokens, 90 * FULL).create());
    let spent: i64 = together(|i| spends(&a, i)).into_iter().sum();
    assert_eq!(s.money(a.run), (0, 0, spent));
    assert!(spent <= 90 * FULL && spent > 0);
    let entries = s.journal(a.run);
    let numbers: Vec<i64> = entries.iter().map(|e| e.seq.0).collect();
    assert_eq!(numbers, (1..=entries.len() as i64).collect::<Vec<_>>(), "no number is lost or given twice");
}

pub fn sixty_four_runs_never_pass_their_parents_limit(s: &Stage) {
    let parent = s.run("parent").cost(100 * FULL).create();
    let process = s.process("p");
    let agents: Vec<Agent> =
        (0..THREADS).map(|i| process.claim(s.run(&format!("c{i}")).under(parent).create())).collect();
    let spent: i64 = together(|i| spends(&agents[i], i)).into_iter().sum();
    assert_eq!(s.money(parent), (0, 0, spent));
    assert!(spent <= 100 * FULL && spent > 0);
}

pub fn sixty_four_runs_never_pass_a_named_budget(s: &Stage) {
    crate::budgets::set(s, "team", Unit::CostNanoUsd, 100 * FULL);
    let process = s.process("p");
    let agents: Vec<Agent> =
        (0..THREADS).map(|i| process.claim(s.run(&format!("c{i}")).tag("team", "a").create())).collect();
    let spent: i64 = together(|i| spends(&agents[i], i)).into_iter().sum();
    let window = crate::budgets::window(s, "team");
    assert_eq!((window.reserved.cost(), window.spent.cost()), (0, spent));
    assert!(spent <= 100 * FULL && spent > 0);
}

pub fn one_of_sixty_four_processes_gets_a_run(s: &Stage) {
    let run = s.run("r").create();
    let processes: Vec<Process> = (0..THREADS).map(|i| s.process(&format!("p{i}"))).collect();
    let claims = together(|i| processes[i].ask(processes[i].claiming(run)));
    let won = claims.iter().filter(|c| matches!(c, Ok(Claimed::Attempt { .. }))).count();
    assert_eq!(won, 1);
    let held = |c: &&Result<Claimed, Error>| matches!(c, Err(e) if e.code() == "run_held");
    assert_eq!(claims.iter().filter(held).count(), THREADS - 1);
}

pub fn registering_at_once_gives_everyone_a_number(s: &Stage) {
    let process = s.process("p");
    let mut numbers: Vec<InstanceNo> = together(|_| {
        let identity = outlast_core::run::instance::Identity::default();
        process.ask(outlast_core::engine::run::process::Register { identity }).unwrap()
    });
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), THREADS);
}

pub fn one_run_is_created_by_many_at_once(s: &Stage) {
    let (process, start) = (s.process("p"), s.run("r").start);
    let started = together(|_| process.ask(start.clone()).unwrap());
    assert_eq!(started.iter().filter(|x| x.created).count(), 1);
    assert!(started.iter().all(|x| x.run == started[0].run));
}

pub fn no_increment_is_lost(s: &Stage) {
    let process = s.process("p");
    together(|_| {
        loop {
            let item = process.store.state("ns", "agent", "n").unwrap();
            let (version, value) = item.map_or((0, 0), |i| {
                (i.version, String::from_utf8(i.value.unwrap().to_vec()).unwrap().parse::<i64>().unwrap())
            });
            let change =
                crate::state::expecting(crate::state::change("n", &(value + 1).to_string()), version);
            match process.ask(Put { changes: vec![change], ..Put::default() }) {
                Ok(_) => break,
                Err(e) => assert_eq!(e.code(), "conflict"),
            }
        }
    });
    let item = s.store().state("ns", "agent", "n").unwrap().unwrap();
    let want = THREADS.to_string();
    assert_eq!((item.version, item.value.as_deref()), (THREADS as i64, Some(want.as_bytes())));
}

pub fn a_call_is_settled_by_one_of_many(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let seq = a.call("x");
    let settled =
        together(|_| a.ask(a.settle(seq, outlast_core::engine::call::settle::Close::Done(bill(10)))));
    assert_eq!(settled.iter().filter(|x| x.is_ok()).count(), 1);
    assert_eq!((s.money(a.run), s.status(a.run)), ((0, 0, 10), Status::Running));
}

/// Eight threads, 25 read-modify-write increments each, in transactions where the first to commit wins.
pub fn no_increment_of_overlapping_transactions_is_lost(s: &Stage) {
    let store = s.store();
    let table = Mutex::new(Transactions::default());
    let name = Name::new("ns", "agent", "n");
    let increment = |id: &str| -> Result<(), Error> {
        let began = store.state_position()?;
        table.lock().unwrap().begin(id, None, began, 0).unwrap();
        let seen = store.state_at("ns", "agent", "n", At::Position(began).into())?;
        let n =
            seen.map_or(0, |i| String::from_utf8(i.value.unwrap().to_vec()).unwrap().parse::<i64>().unwrap());
        let change = Change::set(name.clone(), (n + 1).to_string().as_bytes());
        table.lock().unwrap().change(id, change, 0).unwrap();
        let put = table.lock().unwrap().commit(id, Conflicts::FirstCommitter, 0).unwrap();
        store.ask(put, Durability::Synced).wait().map(drop)
    };
    thread::scope(|scope| {
        for t in 0..8 {
            let increment = &increment;
            scope.spawn(move || {
                for i in 0..25 {
                    let mut tries = 0..;
                    while let Err(e) = increment(&format!("{t}/{i}/{}", tries.next().unwrap())) {
                        assert_eq!(e.code(), "conflict");
                    }
                }
            });
        }
    });
    let item = store.state("ns", "agent", "n").unwrap().unwrap();
    assert_eq!((item.version, item.value.as_deref()), (200, Some(&b"200"[..])));
}

/// Each transaction sets four keys, of two agents in two namespaces, to the same number. Readers look at
/// one position, at one commit, and by a scan.
pub fn no_reader_sees_part_of_a_transaction(s: &Stage) {
    const TURNS: i64 = 60;
    const PLACES: [(&str, &str); 2] = [("ns", "a"), ("other", "b")];
    let store = s.store();
    let changes = |n: i64| {
        let place = |(namespace, agent)| {
            ["x", "y"].map(|k| Change::set(Name::new(namespace, agent, k), n.to_string().as_bytes()))
        };
        PLACES.into_iter().flat_map(place).collect::<Vec<_>>()
    };
    let written = AtomicBool::new(false);
    let value = |i: Item| String::from_utf8(i.value.unwrap().to_vec()).unwrap();
    let look = |at: At| {
        let read = |(namespace, agent)| {
            ["x", "y"].map(|k| store.state_at(namespace, agent, k, at.into()).unwrap().map(value))
        };
        let mut seen: Vec<_> = PLACES.into_iter().flat_map(read).collect();
        for (namespace, agent) in PLACES.map(|(n, a)| (n.to_owned(), a.to_owned())) {
            let scan = Scan { namespace, agent, at, limit: 9, ..Scan::default() };
            let found = store.state_scan(&scan).unwrap();
            assert!(found.is_empty() || found.len() == 2, "{at:?}: {found:?}");
            seen.extend(found.into_iter().map(|i| Some(value(i))));
        }
        seen.dedup();
        assert!(
            seen.len() == 1 || seen.iter().all(Option::is_none),
            "part of a transaction at {at:?}: {seen:?}"
        );
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=TURNS {
                store
                    .ask(Put { changes: changes(n), ..Put::default() }, Durability::Committed)
                    .wait()
                    .unwrap();
            }
            written.store(true, Ordering::SeqCst);
        });
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let last = written.load(Ordering::SeqCst);
                    look(At::Position(store.state_position().unwrap()));
                    if let Some(head) = store.namespace("ns").unwrap() {
                        look(At::Commit(head.commit));
                    }
                    let (namespace, agent) = ("ns".to_owned(), "a".to_owned());
                    let found =
                        store.state_scan(&Scan { namespace, agent, limit: 9, ..Scan::default() }).unwrap();
                    assert!(found.windows(2).all(|w| w[0].value == w[1].value), "{found:?}");
                    let (namespace, agent) = ("ns".to_owned(), "a".to_owned());
                    let range = EventRange { namespace, agent, limit: 9999, ..EventRange::default() };
                    assert_eq!(store.state_events(&range).unwrap().events.len() % 2, 0);
                    if last {
                        break;
                    }
                }
            });
        }
    });
}
