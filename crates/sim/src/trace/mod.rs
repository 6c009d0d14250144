//! Traces: rows that a real store wrote, in the order in which it did, replayed through the model (`model`).
//!
//! A trace has a row of JSON a line. Triggers write them (`scripts/crash/traces.py`), in the transaction of what they tell: what
//! a kill took from the store, it took from the trace too. A row that is written again has changed: the difference is an
//! act, or several where a group of operations wrote it once. Rows of one operation come in the order of their tables.

pub mod model;

use std::collections::BTreeMap;

use outlast_core::journal::{Kind, State};
use serde::Deserialize;

use model::{Act, Charged, Entry, Of, Sum, World, Wrong};

/// Row as it was written. Variants stand in the order in which an operation writes its tables.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "table", rename_all = "snake_case")]
enum Row {
    Instances { no: i64, life: i64 },
    Envelopes { no: i64, limits: [Option<i64>; 3], reserved: Sum, doubt: [i64; 2], spent: Sum },
    Runs { no: i64, charges: Vec<i64> },
    Attempts { run: i64, no: i64, slot: i64, instance: Option<i64>, fence: Option<i64>, ended: bool },
    Leases { run: i64, slot: i64, instance: i64, fence: i64 },
    Entries(Written),
}

#[derive(Clone, Debug, Deserialize)]
struct Written {
    run: i64,
    seq: i64,
    kind: i64,
    state: i64,
    attempt: i64,
    instance: Option<i64>,
    opened_by: i64,
    held: Sum,
    spent: Sum,
    overrun: [Option<i64>; 2],
    windows: Option<Vec<i64>>,
    sends: Option<i64>,
    repeatable: Option<bool>,
    at_most_once: Option<bool>,
}

/// Row of a trace that the model does not allow.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {row}: {fault}")]
pub struct Refused {
    /// Number of the line, from 1.
    pub row: usize,
    pub fault: Fault,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error(transparent)]
    Wrong(#[from] Wrong),
    #[error("envelope {envelope} says {says:?}, and its entries add up to {adds:?}")]
    SumsDiffer { envelope: i64, says: Box<Charged>, adds: Box<Charged> },
    #[error("not a row of a trace: {0}")]
    Unreadable(String),
}

/// Checks a trace. Returns the number of acts that it had.
pub fn check(text: &str) -> Result<usize, Refused> {
    let mut reader = Reader::default();
    let mut last = 0;
    for (at, line) in text.lines().enumerate() {
        last = at + 1;
        reader.read(line).map_err(|fault| Refused { row: last, fault })?;
    }
    reader.rest().map_err(|fault| Refused { row: last, fault })?;
    Ok(reader.acts)
}

#[derive(Default)]
struct Reader {
    world: World,
    /// Sums of each envelope as its row has them.
    sums: BTreeMap<i64, Charged>,
    table: u8,
    acts: usize,
}

impl Reader {
    fn read(&mut self, line: &str) -> Result<(), Fault> {
        let row: Row = serde_json::from_str(line).map_err(|e| Fault::Unreadable(e.to_string()))?;
        let table = row.table();
        if table < self.table {
            self.rest()?;
        }
        self.table = table;
        match row {
            Row::Instances { no, life } => self.process(no, life == 0),
            Row::Envelopes { no, limits, reserved, doubt, spent } => {
                let doubt = [doubt[0], doubt[1], 0];
                self.sums.insert(no, Charged { held: reserved, doubt, spent, ..Charged::default() });
                self.act(Act::Limit { envelope: no, limits })
            }
            Row::Runs { no, charges } => self.act(Act::Start { run: no, charges }),
            Row::Attempts { run, no, slot, instance, fence, ended } => {
                self.attempt((run, no), slot, instance.zip(fence), ended)
            }
            Row::Leases { run, slot, instance, fence } => {
                let lent = self.world.lease((run, slot)) == Some((instance, fence));
                if lent {
                    Ok(())
                } else {
                    self.act(Act::Lend { slot: (run, slot), process: instance, fence })
                }
            }
            Row::Entries(written) => self.entry(&written),
        }
    }

    fn act(&mut self, act: Act) -> Result<(), Fault> {
        self.acts += 1;
        Ok(self.world.act(act)?)
    }

    /// Ends an operation: each envelope has to have what its entries add up to.
    fn rest(&mut self) -> Result<(), Fault> {
        self.world.rest()?;
        for (&envelope, says) in &self.sums {
            let adds = self.world.charged(envelope);
            if (adds.held, adds.doubt, adds.spent) != (says.held, says.doubt, says.spent) {
                return Err(Fault::SumsDiffer { envelope, says: Box::new(*says), adds: Box::new(adds) });
            }
        }
        Ok(())
    }

    fn process(&mut self, process: i64, lives: bool) -> Result<(), Fault> {
        match (self.world.lives(process), lives) {
            (true, true) => Ok(()),
            (true, false) => self.act(Act::Bury { process }),
            (false, true) => self.act(Act::Register { process }),
            (false, false) => Ok(()),
        }
    }

    fn attempt(&mut self, at: Of, slot: i64, driver: Option<(i64, i64)>, ended: bool) -> Result<(), Fault> {
        let known = self.world.has_attempt(at);
        if !known || !ended && !self.world.is_open_attempt(at) {
            self.act(Act::Begin { at, slot, driver })?;
        }
        if ended && self.world.is_open_attempt(at) { self.act(Act::End { at }) } else { Ok(()) }
    }

    fn entry(&mut self, new: &Written) -> Result<(), Fault> {
        let unreadable =
            |what: &str, code: i64| Fault::Unreadable(format!("no {what} has the number {code}"));
        let kind = Kind::from_code(new.kind).ok_or_else(|| unreadable("kind", new.kind))?;
        let state = State::from_code(new.state).ok_or_else(|| unreadable("state", new.state))?;
        let at = (new.run, new.seq);
        let overrun = [new.overrun[0].unwrap_or(0), new.overrun[1].unwrap_or(0), 0];
        let sends = new.sends.unwrap_or(0);
        let Some(old) = self.world.entry(at).cloned() else {
            let intended = kind == Kind::Call || kind == Kind::Tool || new.at_most_once == Some(true);
            let windows = new.windows.clone().unwrap_or_default();
            let repeatable = new.repeatable == Some(true);
            let (attempt, holder, opening) = (new.attempt, new.instance, new.opened_by);
            let (held, spent, sender) = (new.held, new.spent, None);
            return self.act(Act::Open {
                at,
                entry: Entry {
                    kind,
                    state,
                    attempt,
                    holder,
                    opening,
                    held,
                    spent,
                    overrun,
                    windows,
                    sends,
                    sender,
                    repeatable,
                    intended,
                },
            });
        };
        if old.opening != new.opened_by {
            let process = new.instance.ok_or(Wrong::Moved(at.0, at.1))?;
            self.act(Act::Take { at, attempt: new.attempt, process, opening: new.opened_by })?;
        }
        for _ in old.sends..sends {
            self.act(Act::Send { at, repeatable: new.repeatable == Some(true) })?;
        }
        let is_call = kind == Kind::Call;
        let moved = is_call && (old.held, old.spent) != (new.held, new.spent);
        match (old.state, state) {
            (State::Open, State::Open) | (State::Unknown, State::Unknown) if !moved => Ok(()),
            (State::Open, State::Open) => Err(Wrong::Moved(at.0, at.1).into()),
            (State::Unknown, State::Unknown) if old.spent == new.spent => {
                self.act(Act::Pass { at, held: new.held })
            }
            (State::Open, State::Unknown) => self.act(Act::Doubt { at, held: new.held, spent: new.spent }),
            // What it holds behind its end is told apart from a second end.
            (State::Open | State::Unknown, _) if is_call && new.held != Sum::default() => {
                Err(Wrong::Unbacked(at.0, at.1).into())
            }
            (State::Open, _) | (State::Unknown, State::Done | State::Failed | State::Void) => {
                let (opening, spent) = (new.opened_by, new.spent);
                self.act(Act::Close { at, opening, state, spent, overrun })
            }
            (old, new) if old == new && !moved => Ok(()),
            _ => Err(Wrong::SettledTwice(at.0, at.1).into()),
        }
    }
}

impl Row {
    /// Returns the place of its table among those that an operation writes.
    fn table(&self) -> u8 {
        match self {
            Row::Instances { .. } => 0,
            Row::Envelopes { .. } => 1,
            Row::Runs { .. } => 2,
            Row::Attempts { .. } => 3,
            Row::Leases { .. } => 4,
            Row::Entries(_) => 5,
        }
    }
}
