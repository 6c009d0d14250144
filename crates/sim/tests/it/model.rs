//! The model of traces, explored: whatever its acts allow keeps the promises, over processes that die, take over and settle
//! late. And each act that it refuses would break one: a system that does it all the same is found.
//!
//! Once the database comes back without its newest commit, which it had acknowledged: the process has an opening that the
//! store has not, and its number is given out again. A commit that stands and whose acknowledgement is lost needs no act of its
//! own: processes remember nothing here, so that each does again whatever it may not know to be done.
//!
//! `make model` explores further: `OUTLAST_MODEL` is the number of processes, calls and operations.

use std::time::Instant;

use outlast_core::journal::{Kind, State};
use outlast_sim::trace::model::{Act, Entry, Of, Sum, World, Wrong};
use stateright::{Checker, Model, Property};

const RUN: i64 = 1;
const ENVELOPE: i64 = 1;
const SLOT: Of = (RUN, 0);
const LIMIT: i64 = 100;
/// Reservation of a call: two of them do not fit.
const BOUND: i64 = 60;

/// One run, its processes, a call after another and a tool that is not to be called twice.
struct Exploration {
    /// Processes that register, die and take the run over, each once.
    processes: i64,
    calls: i64,
    /// Most entries that are opened or taken over.
    operations: i64,
    /// Refusal of the model that this system does not heed.
    ignores: Option<fn(&Wrong) -> bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Store {
    world: World,
    attempts: i64,
    entries: i64,
    operations: i64,
    outside: Outside,
}

/// Record of a bookkeeper outside of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Outside {
    /// Processes that live and believe that they drive the run, with the attempt.
    drivers: Vec<(i64, i64)>,
    /// Process that sent each tool call, each time that one did.
    sent: Vec<(i64, i64)>,
    settled: Vec<(i64, i64)>,
    /// Entries that were opened by an attempt that is over.
    stale: Vec<i64>,
    /// Number and operation of an opening that was acknowledged and then lost with its commit.
    lost: Option<(i64, i64)>,
    /// Entries that were closed by whoever had the lost one.
    mixed: Vec<i64>,
    charged: i64,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Register(i64),
    Bury(i64),
    Claim(i64),
    Open {
        process: i64,
        attempt: i64,
        kind: Kind,
    },
    /// The same, and the database loses it.
    Lose {
        process: i64,
        attempt: i64,
        kind: Kind,
    },
    Send {
        process: i64,
        seq: i64,
    },
    Take {
        process: i64,
        attempt: i64,
        seq: i64,
    },
    /// `opening`: the operation by which whoever settles opened or took the entry.
    Settle {
        seq: i64,
        opening: i64,
        spent: i64,
    },
    Doubt(i64),
}

impl Exploration {
    fn does(&self, store: &mut Store, act: Act) -> Option<()> {
        match store.world.act(act) {
            Ok(()) => Some(()),
            Err(wrong) => self.ignores.filter(|ignores| ignores(&wrong)).map(|_| ()),
        }
    }

    /// Plays an operation: acts that are done together or not at all. `None`: the model refuses it.
    fn play(&self, store: &mut Store, step: &Step) -> Option<()> {
        let open = |store: &Store| {
            (1..=store.attempts).filter(|no| store.world.is_open_attempt((RUN, *no))).collect::<Vec<_>>()
        };
        match *step {
            Step::Register(process) => self.does(store, Act::Register { process })?,
            Step::Bury(process) => {
                self.does(store, Act::Bury { process })?;
                let drives = |no: &i64| store.outside.drivers.contains(&(process, *no));
                for no in open(store).into_iter().filter(drives).collect::<Vec<_>>() {
                    self.does(store, Act::End { at: (RUN, no) })?;
                }
                store.outside.drivers.retain(|(driver, _)| *driver != process);
                for seq in 1..=store.entries {
                    let lost = store.world.entry((RUN, seq)).filter(|e| {
                        e.state == State::Open && e.kind == Kind::Call && e.holder == Some(process)
                    });
                    if let Some(lost) = lost.cloned() {
                        let held = [lost.held[0], 0, 0];
                        self.does(store, Act::Doubt { at: (RUN, seq), held, spent: [0, 0, 1] })?;
                    }
                }
            }
            Step::Claim(process) => {
                store.attempts += 1;
                let (no, fence) = (store.attempts, store.attempts);
                for old in open(store).into_iter().filter(|old| *old != no) {
                    self.does(store, Act::End { at: (RUN, old) })?;
                }
                self.does(store, Act::Begin { at: (RUN, no), slot: SLOT.1, driver: Some((process, fence)) })?;
                self.does(store, Act::Lend { slot: SLOT, process, fence })?;
                store.outside.drivers.retain(|(driver, _)| *driver != process);
                store.outside.drivers.push((process, no));
            }
            Step::Open { process, attempt, kind } => {
                store.entries += 1;
                let at = (RUN, store.entries);
                let held = if kind == Kind::Call { [BOUND, 0, 1] } else { Sum::default() };
                let entry = Entry {
                    kind,
                    state: State::Open,
                    attempt,
                    holder: Some(process),
                    opening: store.operations,
                    held,
                    spent: Sum::default(),
                    overrun: Sum::default(),
                    windows: Vec::new(),
                    sends: 0,
                    sender: None,
                    repeatable: false,
                    intended: true,
                };
                self.does(store, Act::Open { at, entry })?;
                store.outside.charged += held[0];
                if !store.world.is_open_attempt((RUN, attempt)) {
                    store.outside.stale.push(at.1);
                }
            }
            Step::Lose { process, attempt, kind } => {
                let mut had = store.clone();
                self.play(&mut had, &Step::Open { process, attempt, kind })?;
                store.outside.lost = Some((had.entries, store.operations));
            }
            Step::Send { process, seq } => {
                self.does(store, Act::Send { at: (RUN, seq), repeatable: false })?;
                store.outside.sent.push((seq, process));
            }
            Step::Take { process, attempt, seq } => {
                let opening = store.operations;
                self.does(store, Act::Take { at: (RUN, seq), attempt, process, opening })?;
            }
            Step::Settle { seq, opening, spent } => {
                let at = (RUN, seq);
                let entry = store.world.entry(at)?.clone();
                let (state, overrun) = (State::Done, Sum::default());
                let spent = if entry.kind == Kind::Call { [spent, 0, 1] } else { Sum::default() };
                self.does(store, Act::Close { at, opening, state, spent, overrun })?;
                if entry.opening != opening {
                    store.outside.mixed.push(seq);
                }
                store.outside.settled.push((seq, spent[0]));
                store.outside.charged += spent[0] - entry.held[0];
            }
            Step::Doubt(seq) => {
                let held = store.world.entry((RUN, seq)).map(|e| [e.held[0], 0, 0])?;
                self.does(store, Act::Doubt { at: (RUN, seq), held, spent: [0, 0, 1] })?;
            }
        }
        match store.world.rest() {
            Ok(()) => Some(()),
            Err(wrong) => self.ignores.filter(|ignores| ignores(&wrong)).map(|_| ()),
        }
    }
}

impl Model for Exploration {
    type State = Store;
    type Action = Step;

    fn init_states(&self) -> Vec<Store> {
        let mut world = World::default();
        world.act(Act::Start { run: RUN, charges: vec![ENVELOPE] }).unwrap();
        world.act(Act::Limit { envelope: ENVELOPE, limits: [Some(LIMIT), None, None] }).unwrap();
        vec![Store { world, attempts: 0, entries: 0, operations: 0, outside: Outside::default() }]
    }

    fn actions(&self, store: &Store, steps: &mut Vec<Step>) {
        for process in 1..=self.processes {
            steps.extend([Step::Register(process), Step::Bury(process)]);
            if store.attempts < self.processes {
                steps.push(Step::Claim(process));
            }
            for attempt in 1..=store.attempts {
                if store.entries <= self.calls {
                    let kind = if store.entries == 0 { Kind::Tool } else { Kind::Call };
                    steps.push(Step::Open { process, attempt, kind });
                    if store.outside.lost.is_none() {
                        steps.push(Step::Lose { process, attempt, kind });
                    }
                }
                steps.extend((1..=store.entries).map(|seq| Step::Take { process, attempt, seq }));
            }
            steps.extend((1..=store.entries).map(|seq| Step::Send { process, seq }));
        }
        for seq in 1..=store.entries {
            let own = store.world.entry((RUN, seq)).map(|entry| (seq, entry.opening));
            for (seq, opening) in own.into_iter().chain(store.outside.lost.filter(|(lost, _)| *lost == seq)) {
                steps.extend([20, BOUND].map(|spent| Step::Settle { seq, opening, spent }));
            }
            steps.push(Step::Doubt(seq));
        }
    }

    fn next_state(&self, store: &Store, step: Step) -> Option<Store> {
        let is_tool = |seq| store.world.entry((RUN, seq)).is_some_and(|e| e.kind == Kind::Tool);
        // Only a tool is sent, by the process that has it; only a call is in doubt.
        let is_sound = match step {
            Step::Send { process, seq } => {
                is_tool(seq)
                    && store.world.entry((RUN, seq)).is_some_and(|e| e.holder == Some(process) && e.sends < 2)
            }
            Step::Take { seq, .. } => is_tool(seq),
            Step::Doubt(seq) => !is_tool(seq),
            _ => true,
        };
        let mut next = store.clone();
        let is_operation = matches!(step, Step::Open { .. } | Step::Lose { .. } | Step::Take { .. });
        next.operations += i64::from(is_operation);
        if !is_sound || next.operations > self.operations {
            return None;
        }
        self.play(&mut next, &step)?;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one process drives", |_, store: &Store| store.outside.drivers.len() <= 1),
            Property::always("no tool is called by two", |_, store: &Store| {
                store.outside.sent.iter().all(|(seq, by)| {
                    store.outside.sent.iter().all(|(other, another)| seq != other || by == another)
                })
            }),
            Property::always("an entry is settled once", |_, store: &Store| {
                let once = |(seq, _): &(i64, i64)| {
                    store.outside.settled.iter().filter(|(other, _)| other == seq).count() == 1
                };
                store.outside.settled.iter().all(once)
            }),
            Property::always("an attempt that is over opens nothing", |_, store: &Store| {
                store.outside.stale.is_empty()
            }),
            Property::always("no result reaches another entry", |_, store: &Store| {
                store.outside.mixed.is_empty()
            }),
            Property::always("no limit is passed", |_, store: &Store| store.outside.charged <= LIMIT),
            Property::sometimes("a lost call is corrected", |_, store: &Store| {
                store.outside.settled.len() > 1 && !store.world.lives(1)
            }),
            Property::sometimes("a number is given out again", |_, store: &Store| {
                let lost = store.outside.lost;
                lost.is_some_and(|(seq, op)| store.world.entry((RUN, seq)).is_some_and(|e| e.opening != op))
            }),
            Property::sometimes("a tool is taken over", |_, store: &Store| {
                store.world.entry((RUN, 1)).is_some_and(|e| e.attempt == 2)
            }),
        ]
    }
}

#[test]
fn whatever_the_model_of_traces_allows_keeps_the_promises() {
    let extent = std::env::var("OUTLAST_MODEL").unwrap_or_else(|_| "2,1,3".to_owned());
    let numbers: Vec<i64> = extent.split(',').map(|n| n.parse().expect("a number")).collect();
    let [processes, calls, operations] = numbers[..] else { panic!("PROCESSES,CALLS,OPERATIONS: {extent}") };
    let began = Instant::now();
    // By depth: by breadth, all states of a depth would be in memory at once.
    let checked =
        Exploration { processes, calls, operations, ignores: None }.checker().threads(2).spawn_dfs().join();
    let (states, seconds) = (checked.unique_state_count(), began.elapsed().as_secs_f64());
    println!(
        "{processes} processes, {calls} calls, {operations} operations: {states} states in {seconds:.1} s, {:.0} a second",
        states as f64 / seconds
    );
    checked.assert_properties();
    assert!(states > 1_000);
}

/// Finds the promise that a system breaks, within so many steps, which does what the model refuses so.
#[track_caller]
fn breaks(promise: &'static str, calls: i64, steps: usize, ignores: fn(&Wrong) -> bool) {
    let system = Exploration { processes: 2, calls, operations: 4, ignores: Some(ignores) };
    let checked = system.checker().target_max_depth(steps + 2).spawn_bfs().join();
    assert!(checked.discovery(promise).is_some(), "nobody noticed");
}

#[test]
fn what_the_model_of_traces_refuses_would_break_a_promise() {
    breaks("an attempt that is over opens nothing", 0, 4, |wrong| matches!(wrong, Wrong::Fenced(..)));
    breaks("an entry is settled once", 0, 5, |wrong| matches!(wrong, Wrong::SettledTwice(..)));
    breaks("no result reaches another entry", 0, 5, |wrong| matches!(wrong, Wrong::AnotherOpening(..)));
    breaks("no limit is passed", 2, 5, |wrong| matches!(wrong, Wrong::OverLimit(..)));
    breaks("no tool is called by two", 0, 9, |wrong| matches!(wrong, Wrong::SentAgain(..)));
    breaks("one process drives", 0, 5, |wrong| matches!(wrong, Wrong::Seized(..)));
}
