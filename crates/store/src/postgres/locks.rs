//! Locks of a group: what no other group reads for a decision, or writes, until it has committed.
//!
//! A group takes the store's own lock first. Usually it takes it beside others, and then, alone, the parts that its
//! operations need: the envelopes that their runs are charged to, each run by its own envelope. So groups of runs that
//! share no envelope do not wait for each other. A group that needs more (a sweep, a budget, work in a fork) takes the
//! whole store alone, as servers of older versions always do.
//!
//! The envelopes that a run is charged to are known from earlier transactions, and may have changed since. So the rows
//! that a group read are compared with its locks, and a group that read more begins again with the whole store.
//!
//! No group waits in a circle: the store's lock comes first, then the parts in their order, all before the first row is
//! read, and rows are written only under them. Locks are advisory and not of rows, so that what is absent can be locked
//! too, and a lock costs no write.

use std::collections::BTreeSet;

use outlast_core::{
    engine::{Loaded, Need},
    store::load::Edges,
};

use crate::postgres::prelude::*;

/// Locks that a group takes before it reads.
#[derive(Debug, PartialEq, Eq)]
pub enum Locks {
    /// The lock of the whole store, exclusively.
    Whole,
    /// The lock of the store in shared mode, and those of these parts exclusively.
    Parts(BTreeSet<Part>),
}

/// Part of a store, in the order in which parts are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The next numbers of runs, envelopes and processes, and with them every id that no run has yet.
    Numbers,
    /// The whole state: its positions are given out one after the other, so that no reader skips a late commit.
    State,
    /// A process's row. What is read of another process's row is whether it lives, which changes under the whole
    /// store's lock only.
    Instance(InstanceNo),
    /// An envelope; with a run's own envelope, the run and all that belongs to it.
    Envelope(EnvelopeNo),
}

/// Largest number of parts that a group locks: the database's table of all locks of all sessions has a limited size
/// (`max_locks_per_transaction`, by default 64, times `max_connections`).
const MOST: usize = 256;

/// Number of the events' lock in the class of the store's own.
const EVENTS: i32 = 2;

/// Expression that locks parts, given the two halves of their keys. Rows of a function are taken in their order.
const PARTS: &str =
    "(SELECT count(pg_advisory_xact_lock(class, key)) FROM unnest($3, $4) AS part (class, key)) >= 0";

impl Locks {
    /// Returns the locks for operations with these needs.
    pub fn of(group: &[Vec<Need>], edges: &Edges) -> Locks {
        let mut parts = BTreeSet::new();
        for needs in group {
            let is_new = is_new(needs);
            for need in needs {
                if !add(need, is_new, edges, &mut parts) || parts.len() > MOST {
                    return Locks::Whole;
                }
            }
        }
        Locks::Parts(parts)
    }

    /// Returns whether what was read for decisions at `now` is locked.
    pub fn cover(&self, known: &Known, now: Micros) -> bool {
        let Locks::Parts(parts) = self else { return true };
        let envelope = |no: EnvelopeNo| parts.contains(&Part::Envelope(no));
        let opens_no_window = |b: &Budget| b.removed || (b.window.is_some() && b.window == b.current(now));
        (known.numbers.is_none() || parts.contains(&Part::Numbers))
            && known.runs.values().all(|row| envelope(row.value.envelope()) && row.value.origins.is_empty())
            && known.envelopes.keys().all(|no| envelope(*no))
            && known.attempts.keys().all(|(run, _)| known.runs.contains_key(run))
            && known.leases.keys().all(|(run, _)| known.runs.contains_key(run))
            && known.entries.keys().all(|(run, _)| known.runs.contains_key(run))
            && known.budgets.values().all(|row| opens_no_window(&row.value))
    }

    /// Returns whether a decision changed only what is locked. Anything else is a defect. `known` is covered, as it was
    /// before the decision.
    pub fn cover_changes(&self, known: &Known, l: &Loaded) -> bool {
        let Locks::Parts(parts) = self else { return true };
        let run = |no: RunNo| known.runs.contains_key(&no) || l.runs.iter().any(|row| row.value.no == no);
        fn covered<T>(rows: &[Row<T>], parts: &BTreeSet<Part>, part: impl Fn(&T) -> Part) -> bool {
            rows.iter().all(|row| match row.touch {
                Touch::Read => true,
                Touch::Insert => parts.contains(&Part::Numbers),
                Touch::Update => parts.contains(&part(&row.value)),
            })
        }
        covered(&l.instances, parts, |instance| Part::Instance(instance.no))
            && covered(&l.runs, parts, |run| Part::Envelope(run.envelope()))
            && covered(&l.envelopes, parts, |envelope| Part::Envelope(envelope.no))
            && l.attempts.iter().all(|row| run(row.value.run))
            && l.leases.iter().all(|row| run(row.value.run))
            && l.entries.iter().all(|row| run(row.value.run))
            && l.payloads.iter().all(|p| run(p.run))
            && l.specs.iter().all(|(no, _)| run(*no))
            && l.budgets.iter().all(|row| row.touch == Touch::Read)
            && (!l.state.is_touched() || parts.contains(&Part::State))
            && l.forgotten.is_empty()
            && l.new_delivery.is_none()
    }

    /// Returns a condition that holds once the locks are taken, and the two halves of the keys of the parts, in the order
    /// in which parts are locked: its parameters $3 and $4, where there are any.
    pub fn taken(&self, schema: &SchemaName) -> (String, (Vec<i32>, Vec<i32>)) {
        let (store, keys) = (self.store_taken(schema), self.keys(schema).unzip());
        match self {
            Locks::Parts(parts) if !parts.is_empty() => (format!("CASE WHEN {store} THEN {PARTS} END"), keys),
            _ => (store, keys),
        }
    }

    /// Returns a condition that holds once the store's lock is taken, the first of all.
    fn store_taken(&self, schema: &SchemaName) -> String {
        match self {
            Locks::Whole => format!("{} IS NOT NULL", schema.lock()),
            Locks::Parts(_) => Locks::beside_others(schema),
        }
    }

    /// Returns a condition that holds once the store's lock is taken beside others.
    pub fn beside_others(schema: &SchemaName) -> String {
        format!("{} IS NOT NULL", schema.lock_beside_others())
    }

    /// Returns the two halves of the key of each part, in the order in which parts are locked.
    pub fn keys(&self, schema: &SchemaName) -> impl Iterator<Item = (i32, i32)> {
        let parts = match self {
            Locks::Whole => None,
            Locks::Parts(parts) => Some(parts),
        };
        parts.into_iter().flatten().map(|part| part.key(schema))
    }
}

/// Returns the statement that waits for the lock of the events, after which a group draws the numbers of its own.
///
/// The lock is held until the commit is seen, so events are seen in the order of their numbers, and a reader's cursor skips
/// none. It is taken behind all other locks, and nothing but the commit follows: who holds it waits for nobody.
pub fn in_order_of_events<'a>(schema: &SchemaName) -> Statement<'a> {
    let int = |value| Cell::Int(Some(i64::from(value)));
    let sql = "SELECT pg_advisory_xact_lock($1::int, $2::int)".into();
    let values = Values::One(vec![int(schema.lock_class()), int(EVENTS)]);
    Statement { joins: false, ..Statement::new(sql, values) }
}

/// Returns the run whose rows a need names; `None` for other needs.
pub fn run_of(need: &Need) -> Option<RunNo> {
    match need {
        Need::Run(no)
        | Need::Windows(Some(no))
        | Need::Spec(no)
        | Need::OpenAttempts(no)
        | Need::Leases(no) => Some(*no),
        Need::Attempt(no, _)
        | Need::Labelled(no, _)
        | Need::Lease(no, _)
        | Need::Entry(no, _)
        | Need::Item(no, _)
        | Need::Matching(no, _)
        | Need::Keyed(no, ..) => Some(*no),
        Need::Numbers
        | Need::Instance(_)
        | Need::RunById(_)
        | Need::OfCommand(_)
        | Need::Budgets
        | Need::Budget(_)
        | Need::Windows(None)
        | Need::OwnedBy(_)
        | Need::State(_)
        | Need::Transaction(_)
        | Need::Namespace(_)
        | Need::Delivery(_)
        | Need::Compactable { .. } => None,
    }
}

/// Returns whether an operation with these needs begins a run or registers a process: of the numbered rows that are there
/// it changes none, and budgets it only reads, which change under the whole store's lock.
fn is_new(needs: &[Need]) -> bool {
    matches!(needs, [Need::Numbers]) || needs.iter().any(|need| matches!(need, Need::RunById(_)))
}

/// Adds the parts that a need asks for. Returns false if it asks for the whole store.
fn add(need: &Need, is_new: bool, edges: &Edges, parts: &mut BTreeSet<Part>) -> bool {
    if let Some(run) = run_of(need) {
        let Some(edge) = edges.run(run).filter(|edge| !edge.is_fork) else { return false };
        parts.extend(edge.charges.iter().map(|no| Part::Envelope(*no)));
        // A call is charged to the windows that it was admitted under, usually those of now.
        if matches!(need, Need::Windows(_) | Need::Entry(..) | Need::Matching(..)) {
            parts.extend(edges.windows(&edge.budgets).map(Part::Envelope));
        }
        return true;
    }
    let part = match need {
        Need::Instance(no) => Part::Instance(*no),
        Need::Numbers | Need::RunById(_) | Need::OfCommand(_) | Need::Budgets if is_new => Part::Numbers,
        Need::State(_) | Need::Transaction(_) | Need::Namespace(_) | Need::Compactable { .. } => Part::State,
        _ => return false,
    };
    parts.insert(part);
    true
}

impl Part {
    /// Returns the two halves of the part's key. Numbers that agree in 32 bits share a lock, which does no harm.
    fn key(self, schema: &SchemaName) -> (i32, i32) {
        let (kind, number) = match self {
            Part::Numbers => (0, 0),
            Part::State => (0, 1),
            Part::Instance(no) => (1, no.0),
            Part::Envelope(no) => (2, no.0),
        };
        (schema.lock_class().wrapping_add(kind), number as i32)
    }
}

#[cfg(test)]
mod tests {

    use outlast_core::{state::Name, words::RunId};

    use super::*;

    fn of(needs: Vec<Need>) -> Locks {
        Locks::of(&[needs], &Edges::default())
    }

    #[test]
    fn what_is_not_known_to_be_a_part_locks_the_whole_store() {
        let id = || Need::RunById(RunId::new("r").unwrap());
        for whole in [
            vec![Need::Run(RunNo(1))],
            vec![Need::Numbers, Need::OpenAttempts(RunNo(1))],
            vec![Need::Windows(None)],
            vec![Need::Budgets],
            vec![Need::Instance(InstanceNo(1)), Need::OwnedBy(InstanceNo(1))],
            vec![Need::Delivery("ntfy".into())],
            vec![Need::Numbers, id(), Need::Budgets, Need::Run(RunNo(1))],
        ] {
            assert_eq!(of(whole.clone()), Locks::Whole, "{whole:?}");
        }
        let parts = |parts: &[Part]| Locks::Parts(parts.iter().copied().collect());
        assert_eq!(of(vec![Need::Numbers]), parts(&[Part::Numbers]));
        assert_eq!(of(vec![Need::Numbers, id(), Need::Budgets]), parts(&[Part::Numbers]));
        let name = Name::new("n", "a", "k");
        assert_eq!(of(vec![Need::State(name)]), parts(&[Part::State]));
        let many = (0..).map(InstanceNo).map(Need::Instance);
        assert_ne!(of(many.clone().take(MOST).collect()), Locks::Whole);
        assert_eq!(of(many.take(MOST + 1).collect()), Locks::Whole);
    }

    /// Servers of other versions take the same locks: a change of a key is one of the stored format.
    #[test]
    fn locks_are_taken_in_one_order_and_under_keys_that_stay() {
        let usual = SchemaName::default();
        let alone = "pg_advisory_xact_lock(31372865309864820) IS NOT NULL".to_owned();
        assert_eq!(Locks::Whole.taken(&usual), (alone, Default::default()));
        let parts =
            [Part::Envelope(EnvelopeNo(9)), Part::State, Part::Instance(InstanceNo(3)), Part::Numbers];
        let class = usual.lock_class();
        let beside =
            format!("CASE WHEN pg_advisory_xact_lock_shared(31372865309864820) IS NOT NULL THEN {PARTS} END");
        let keys = (vec![class, class, class + 1, class + 2], vec![0, 1, 3, 9]);
        assert_eq!(Locks::Parts(parts.into()).taken(&usual), (beside, keys));
        assert_eq!(class, 1_818_325_876);
    }
}
