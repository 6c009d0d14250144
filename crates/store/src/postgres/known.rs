//! Rows that a transaction has read, as its operations left them.
//!
//! Rows that were read stay true until the transaction ends, because it holds their locks (`locks`). So each row is read
//! once, later operations of the group see the changes of earlier ones here, and each row is written once, at the end.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem::take,
    sync::Arc,
};

use outlast_core::{
    engine::{
        Loaded, Numbers,
        loaded::{Key, NewPayload, Newest, Table},
    },
    envelope::{Budget, Envelope},
    events::{Event, delivery::Delivery},
    journal::{Entry, Kind, LedgerLine, State},
    run::{Attempt, Instance, Lease, Run, Spec},
    state::{
        Committed, Name, Namespace, Position,
        rows::{Compactable, Current, Rows, Trimmed},
    },
    words::{AttemptNo, EnvelopeNo, InstanceNo, Micros, Row, RunNo, Seq, Slot, Touch},
};

/// Rows of one table by their keys.
pub type Held<T> = BTreeMap<<T as Table>::Id, Row<T>>;

/// Table whose rows [`Known`] keeps.
pub trait Hold: Table + Clone {
    fn held(known: &Known) -> &Held<Self>;
    fn held_mut(known: &mut Known) -> &mut Held<Self>;
}

macro_rules! hold {
    ($($rows:ident: $row:ty,)+) => {
        $(impl Hold for $row {
            fn held(known: &Known) -> &Held<Self> {
                &known.$rows
            }
            fn held_mut(known: &mut Known) -> &mut Held<Self> {
                &mut known.$rows
            }
        })+

        impl Known {
            /// Takes over the rows that an operation changed.
            fn keep_rows(&mut self, l: &mut Loaded) {
                $(self.merge(take(&mut l.$rows));)+
            }

            /// Records that all rows are as the database has them.
            fn are_read(&mut self) {
                $(self.$rows.values_mut().for_each(|row| row.touch = Touch::Read);)+
            }
        }
    };
}

hold! {
    instances: Instance,
    runs: Run,
    envelopes: Envelope,
    budgets: Budget,
    attempts: Attempt,
    leases: Lease,
    entries: Entry,
}

/// Rows that a transaction has read and changed.
#[derive(Default)]
pub struct Known {
    asked: BTreeSet<Mark>,
    /// Next unused numbers in the database, as read. Rows that the transaction has inserted since use some of
    /// them. `None` if they were not read.
    pub numbers: Option<Numbers>,
    pub instances: Held<Instance>,
    pub runs: Held<Run>,
    pub envelopes: Held<Envelope>,
    pub budgets: Held<Budget>,
    pub attempts: Held<Attempt>,
    pub leases: Held<Lease>,
    pub entries: Held<Entry>,
    pub specs: BTreeMap<RunNo, Row<Spec>>,
    pub deliveries: BTreeMap<String, Row<Delivery>>,
    /// Events to be written, in order.
    pub events: Vec<Event>,
    /// Lines to be added to the ledger.
    pub posted: Vec<LedgerLine>,
    /// Payloads to be written, by run, entry, role and part.
    pub payloads: BTreeMap<(RunNo, Seq, i64, u32), NewPayload>,
    pub state: StateKnown,
}

/// State that a transaction has read and changed.
#[derive(Default)]
pub struct StateKnown {
    pub position: Position,
    pub namespaces: HashMap<String, Namespace>,
    pub old_ids: HashMap<String, (i64, Micros)>,
    pub keys: HashMap<Arc<Name>, Current>,
    /// Recorded outcomes of transactions, by transaction id.
    pub outcomes: HashMap<String, Committed>,
    /// State keys with older versions, by the text of the `Key::Compactable` that they were read under.
    pub compactable: HashMap<String, Vec<Compactable>>,
    /// Changes of the state to be written, one decision's after another's.
    pub changes: Vec<Rows>,
}

/// Key that was asked for. Keys that hold names are kept as their text, which is unique; that of a step in parts, since
/// writing it out takes longer than to decide the step.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    Numbered(Key<'static>),
    Newest(RunNo, Kind, String, String, Option<Seq>),
    Named(String),
}

impl Mark {
    fn of(key: &Key<'_>) -> Mark {
        match (key.numbered(), *key) {
            (Some(key), _) => Mark::Numbered(key),
            (None, Key::Newest(Newest { run, kind, scope, key, upto })) => {
                Mark::Newest(run, kind, scope.to_owned(), key.to_owned(), upto)
            }
            (None, key) => Mark::Named(format!("{key:?}")),
        }
    }
}

impl Known {
    /// Returns those of `keys` that the database has not been asked for yet, each once, and records that it
    /// has been asked now.
    pub fn unknown<'a>(&mut self, keys: &[Key<'a>]) -> Vec<Key<'a>> {
        keys.iter().filter(|key| !self.holds(key) && self.asked.insert(Mark::of(key))).copied().collect()
    }

    /// Returns the keys without names that the database has been asked for.
    pub fn asked_rows(&self) -> impl Iterator<Item = &Key<'static>> {
        self.asked.iter().filter_map(|mark| match mark {
            Mark::Numbered(key) => Some(key),
            Mark::Newest(..) | Mark::Named(_) => None,
        })
    }

    /// Returns whether the only row that `key` names was already read under another key.
    fn holds(&self, key: &Key<'_>) -> bool {
        match *key {
            Key::Instance(no) => self.instances.contains_key(&no),
            Key::Run(no) => self.runs.contains_key(&no),
            Key::Envelope(no) => self.envelopes.contains_key(&no),
            Key::Budget(no) => self.budgets.contains_key(&no),
            Key::Attempt(run, no) => self.attempts.contains_key(&(run, no)),
            Key::Lease(run, slot) => self.leases.contains_key(&(run, slot)),
            Key::Entry(run, seq) => self.entries.contains_key(&(run, seq)),
            _ => false,
        }
    }

    /// Adds rows as the database has them. A row that is known already is kept as it is.
    pub fn learn<T: Hold>(&mut self, found: Vec<T>) {
        for value in found {
            T::held_mut(self).entry(value.id()).or_insert_with(|| Row::read(value));
        }
    }

    /// Adds the rows that `key` names, all of which are known, to `into`.
    pub fn answer(&self, key: &Key<'_>, into: &mut Loaded) {
        match *key {
            Key::Numbers => into.numbers = Some(self.next_numbers()),
            Key::Instance(no) => one(&self.instances, no, into),
            Key::RunById(id) => all(&self.runs, into, |run| run.id == *id),
            Key::OfCommand(key) => all(&self.runs, into, |run| run.command_key.as_deref() == Some(key)),
            Key::Run(no) => one(&self.runs, no, into),
            Key::Envelope(no) => one(&self.envelopes, no, into),
            Key::Budgets => all(&self.budgets, into, |_| true),
            Key::Budget(no) => one(&self.budgets, no, into),
            Key::Attempt(run, no) => one(&self.attempts, (run, no), into),
            Key::OpenAttempts(run) => {
                within(&self.attempts, ends_of_attempts(run), into, Attempt::is_open);
            }
            Key::Labelled(run, label) => {
                let is = |attempt: &Attempt| attempt.label.as_deref() == Some(label);
                within(&self.attempts, ends_of_attempts(run), into, is);
            }
            Key::Spec(run) => {
                let spec = self.specs.get(&run).map(|row| row.value.clone());
                into.known_specs.extend(spec.map(|spec| (run, spec)));
            }
            Key::Lease(run, slot) => one(&self.leases, (run, slot), into),
            Key::Leases(run) => {
                within(&self.leases, ((run, Slot(i64::MIN)), (run, Slot(i64::MAX))), into, |_| true);
            }
            Key::LeasesOf(instance) => all(&self.leases, into, |lease| lease.instance == instance),
            Key::Entry(run, seq) => one(&self.entries, (run, seq), into),
            Key::Matching(run, key) => {
                within(&self.entries, ends_of_entries(run), into, |e| e.match_key == Some(key));
            }
            Key::Newest(newest) => {
                let (from, to) = ends_of_entries(newest.run);
                let entries = self.entries.range(from..=to).rev().map(|(_, row)| &row.value);
                into.extend(entries.filter(|e| newest.is(e)).take(1).cloned());
            }
            Key::OpenCalls(instance) => {
                let is = |e: &Entry| {
                    e.state == State::Open && e.kind == Kind::Call && e.instance == Some(instance)
                };
                all(&self.entries, into, is);
            }
            Key::Delivery(name) => {
                into.deliveries.extend(self.deliveries.get(name).map(|row| row.value.clone()))
            }
            Key::Position => into.state.position = self.state.position,
            Key::Namespace(name) => {
                let head = self.state.namespaces.get(name).cloned();
                into.state.namespaces.extend(head.map(|head| (name.to_owned(), Row::read(head))));
                let old = self.state.old_ids.get(name).copied();
                into.state.old_ids.extend(old.map(|old| (name.to_owned(), old)));
            }
            Key::State(name) => {
                let current = self.state.keys.get(name).cloned();
                into.state.keys.extend(current.map(|current| (name.clone(), Row::read(current))));
            }
            Key::Transaction(id) => into.state.outcome = self.state.outcomes.get(id).cloned(),
            Key::Compactable { .. } => {
                let found = self.state.compactable.get(&format!("{key:?}"));
                into.state.compactable = found.cloned().unwrap_or_default();
            }
        }
    }

    fn next_numbers(&self) -> Numbers {
        let next = self.numbers.unwrap_or_default();
        let after = |last: Option<i64>| last.map_or(0, |no| no + 1);
        Numbers {
            run: next.run.max(RunNo(after(self.runs.keys().last().map(|no| no.0)))),
            envelope: next.envelope.max(EnvelopeNo(after(self.envelopes.keys().last().map(|no| no.0)))),
            instance: next.instance.max(InstanceNo(after(self.instances.keys().last().map(|no| no.0)))),
        }
    }

    /// Takes over the changes that an operation made to its rows, for later operations of the group to see.
    pub fn keep(&mut self, mut l: Loaded) {
        self.keep_rows(&mut l);
        self.specs.extend(l.specs.into_iter().map(|(run, spec)| (run, Row::insert(spec))));
        for p in l.payloads {
            self.payloads.insert((p.run, p.seq, p.role.code(), p.payload.part), p);
        }
        self.deliveries.extend(l.new_delivery.map(|d| (d.name.clone(), Row::insert(d))));
        self.events.extend(l.events);
        l.posted.into_iter().for_each(|line| line.post(&mut self.posted));
        if l.state.is_touched() {
            self.state.keep(l.state);
        }
    }

    fn merge<T: Hold>(&mut self, rows: Vec<Row<T>>) {
        let held = T::held_mut(self);
        for mut row in rows.into_iter().filter(|row| row.touch != Touch::Read) {
            let inserted = held.get(&row.value.id()).is_some_and(|before| before.touch == Touch::Insert);
            if inserted {
                row.touch = Touch::Insert;
            }
            held.insert(row.value.id(), row);
        }
    }

    /// Returns whether the unwritten changes of the state have to be written before a query for the key, which must see
    /// them.
    pub fn is_in_the_way_of(&self, key: &Key<'_>) -> bool {
        matches!(key, Key::Compactable { .. }) && !self.state.changes.is_empty()
    }

    /// Records that all changes are written. Drops all rows of the state, which are then read again: the
    /// database has numbered them.
    pub fn is_written(&mut self) {
        self.are_read();
        self.specs.values_mut().for_each(|row| row.touch = Touch::Read);
        self.deliveries.values_mut().for_each(|row| row.touch = Touch::Read);
        self.events.clear();
        self.posted.clear();
        self.payloads.clear();
        self.state = StateKnown::default();
        let is_read_again =
            |mark: &Mark| matches!(mark, Mark::Numbered(Key::Position) | Mark::Newest(..) | Mark::Named(_));
        self.asked.retain(|mark| !is_read_again(mark));
    }
}

impl StateKnown {
    fn keep(&mut self, rows: Rows) {
        self.position = self.position.max(rows.position);
        for (name, row) in &rows.namespaces {
            self.namespaces.insert(name.clone(), row.value.clone());
        }
        for (name, row) in rows.keys.iter().filter(|(_, row)| row.touch != Touch::Read) {
            // `moved` tells what one operation did.
            self.keys.insert(name.clone(), Current { moved: false, ..row.value.clone() });
        }
        for c in &rows.commits {
            if let Some(id) = &c.transaction {
                let outcome = Committed { commit: c.commit, at: c.at, versions: Vec::new() };
                self.outcomes.entry((**id).to_owned()).or_insert(outcome);
            }
        }
        for f in &rows.forgettings {
            self.old_ids.remove(&f.namespace);
        }
        // A key that is named by its number alone may be here under its name.
        for r in &rows.removals {
            if let Trimmed::No(no) = r.key {
                self.keys.values_mut().filter(|c| c.no == no).for_each(|c| c.oldest = r.below);
            }
        }
        self.changes.push(rows);
    }
}

fn one<T: Hold>(held: &Held<T>, id: T::Id, into: &mut Loaded) {
    into.extend(held.get(&id).map(|row| row.value.clone()));
}

fn all<T: Hold>(held: &Held<T>, into: &mut Loaded, is: impl Fn(&T) -> bool) {
    into.extend(held.values().map(|row| &row.value).filter(|value| is(value)).cloned());
}

fn within<T: Hold>(held: &Held<T>, (from, to): (T::Id, T::Id), into: &mut Loaded, is: impl Fn(&T) -> bool) {
    into.extend(held.range(from..=to).map(|(_, row)| &row.value).filter(|value| is(value)).cloned());
}

fn ends_of_attempts(run: RunNo) -> ((RunNo, AttemptNo), (RunNo, AttemptNo)) {
    ((run, AttemptNo(i64::MIN)), (run, AttemptNo(i64::MAX)))
}

fn ends_of_entries(run: RunNo) -> ((RunNo, Seq), (RunNo, Seq)) {
    ((run, Seq(i64::MIN)), (run, Seq(i64::MAX)))
}
