//! Rows that a store loads for one operation, and the changes that the decision made to them.
//!
//! An operation names its `Need`s; `store::load` fetches them inside the write transaction; `decide` changes the rows
//! in place; the store writes the touched rows back. A decision sees only the rows that it named: the strict memory
//! store refuses a decision that looks for any other.

use std::{cell::RefCell, collections::BTreeSet, sync::Arc};

use crate::{
    engine::{Actor, Error},
    envelope::{Budget, Envelope},
    events::{Event, delivery::Delivery},
    journal::{Entry, Kind, LedgerLine, Opening, Payload, Role},
    run::{Attempt, Instance, Lease, Run, Spec},
    state::{self, Name},
    words::{
        AttemptNo, BudgetNo, EnvelopeNo, InstanceNo, MatchKey, OpNo, Row, RunId, RunNo, Seq, Slot, Touch,
    },
};

/// Rows that an operation needs, with the rows they lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// The next free run, envelope and instance numbers.
    Numbers,
    Instance(InstanceNo),
    RunById(RunId),
    /// Newest run with this command key.
    OfCommand(String),
    /// The run, with its own envelope and every ancestor's, in the order of the envelopes' numbers.
    Run(RunNo),
    /// Every named budget, including removed ones.
    Budgets,
    Budget(BudgetNo),
    /// Named budgets of a run that another need loads, or all named budgets for `None`; with the envelopes of their
    /// newest windows, and the next free envelope number where a budget has no current window.
    Windows(Option<RunNo>),
    Attempt(RunNo, AttemptNo),
    /// The run's spec, as given when the run was created.
    Spec(RunNo),
    OpenAttempts(RunNo),
    Labelled(RunNo, String),
    /// The lease of a slot and the instance that holds it.
    Lease(RunNo, Slot),
    /// Every lease of the run and the instances that hold them.
    Leases(RunNo),
    /// The entry, the lost calls that it retries, and the items and steps around each of them.
    Entry(RunNo, Seq),
    /// Newest entry of the item with this key, and the instance that works on it.
    Item(RunNo, String),
    /// Every call with this match key, oldest first, and the instances whose connections receive their answers. For the
    /// key of a tool call: every tool call with it, and the instances that make them.
    Matching(RunNo, MatchKey),
    /// Newest entry of this kind, scope and key.
    Keyed(RunNo, Kind, String, String),
    /// Everything a process owns: its open calls with the calls they retry and the items and steps around them, its
    /// leases, the open attempts that it drives, and the runs of all these.
    OwnedBy(InstanceNo),
    /// Newest version of a state key, its namespace, and the store's newest position.
    State(Arc<Name>),
    /// Recorded outcome of the state transaction with this id.
    Transaction(Arc<str>),
    Namespace(String),
    /// Stored row of the deliveries to an endpoint: how far they have come.
    Delivery(Arc<str>),
    /// Keys of a namespace that have older versions, after key number `after`, in the order of their numbers.
    Compactable {
        namespace: String,
        before: Option<i64>,
        after: i64,
        limit: usize,
    },
}

/// Key to look up. A store adds the rows that it finds, and does not follow what they lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key<'a> {
    /// The next free run, envelope and instance numbers.
    Numbers,
    Instance(InstanceNo),
    RunById(&'a RunId),
    /// Newest run with this command key.
    OfCommand(&'a str),
    Run(RunNo),
    Envelope(EnvelopeNo),
    /// Every named budget, including removed ones.
    Budgets,
    Budget(BudgetNo),
    Attempt(RunNo, AttemptNo),
    OpenAttempts(RunNo),
    Labelled(RunNo, &'a str),
    Spec(RunNo),
    Lease(RunNo, Slot),
    Leases(RunNo),
    LeasesOf(InstanceNo),
    Entry(RunNo, Seq),
    /// Every call or tool call with this match key.
    Matching(RunNo, MatchKey),
    Newest(Newest<'a>),
    /// Open calls of an instance.
    OpenCalls(InstanceNo),
    /// Newest position of the state.
    Position,
    Namespace(&'a str),
    Delivery(&'a str),
    /// Newest version of a state key.
    State(&'a Arc<Name>),
    /// Recorded outcome of the transaction with this id.
    Transaction(&'a str),
    /// Keys of a namespace that have older versions, after key number `after`, in the order of their numbers.
    Compactable {
        namespace: &'a str,
        before: Option<i64>,
        after: i64,
        limit: usize,
    },
}

impl Key<'_> {
    /// Returns the key if numbers alone make it; `None` for one that holds a name.
    pub fn numbered(self) -> Option<Key<'static>> {
        Some(match self {
            Key::Numbers => Key::Numbers,
            Key::Instance(no) => Key::Instance(no),
            Key::Run(no) => Key::Run(no),
            Key::Envelope(no) => Key::Envelope(no),
            Key::Budgets => Key::Budgets,
            Key::Budget(no) => Key::Budget(no),
            Key::Attempt(run, no) => Key::Attempt(run, no),
            Key::OpenAttempts(run) => Key::OpenAttempts(run),
            Key::Spec(run) => Key::Spec(run),
            Key::Lease(run, slot) => Key::Lease(run, slot),
            Key::Leases(run) => Key::Leases(run),
            Key::LeasesOf(instance) => Key::LeasesOf(instance),
            Key::Entry(run, seq) => Key::Entry(run, seq),
            Key::Matching(run, key) => Key::Matching(run, key),
            Key::OpenCalls(instance) => Key::OpenCalls(instance),
            Key::Position => Key::Position,
            Key::RunById(_)
            | Key::OfCommand(_)
            | Key::Labelled(..)
            | Key::Newest(_)
            | Key::Namespace(_)
            | Key::State(_)
            | Key::Transaction(_)
            | Key::Delivery(_)
            | Key::Compactable { .. } => return None,
        })
    }
}

/// Query for the newest entry of a kind, scope and key; `upto` limits it to entries up to that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Newest<'a> {
    pub run: RunNo,
    pub kind: Kind,
    pub scope: &'a str,
    pub key: &'a str,
    pub upto: Option<Seq>,
}

impl Newest<'_> {
    pub fn is(&self, e: &Entry) -> bool {
        e.run == self.run
            && e.kind == self.kind
            && *e.scope == *self.scope
            && e.key.as_deref() == Some(self.key)
            && self.upto.is_none_or(|upto| e.seq <= upto)
    }
}

/// Next unused numbers of runs, envelopes and processes in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    pub run: RunNo,
    pub envelope: EnvelopeNo,
    pub instance: InstanceNo,
}

/// Table whose rows an operation loads.
pub trait Table: Sized {
    type Id: Copy + Ord;
    fn id(&self) -> Self::Id;
    fn rows(l: &Loaded) -> &Vec<Row<Self>>;
    fn rows_mut(l: &mut Loaded) -> &mut Vec<Row<Self>>;
}

macro_rules! tables {
    ($($rows:ident: $row:ty, $id:ty = |$r:ident| $key:expr;)+) => {
        $(impl Table for $row {
            type Id = $id;
            fn id(&self) -> $id {
                let $r = self;
                $key
            }
            fn rows(l: &Loaded) -> &Vec<Row<Self>> {
                &l.$rows
            }
            fn rows_mut(l: &mut Loaded) -> &mut Vec<Row<Self>> {
                &mut l.$rows
            }
        })+

        impl Loaded {
            /// Sorts the rows of each table by key, whatever the order in which they were loaded.
            pub fn sort(&mut self) {
                $(self.$rows.sort_by_key(|row| row.value.id());)+
            }

            /// Returns whether any row is to be written back.
            fn has_touched_rows(&self) -> bool {
                $(self.$rows.iter().any(|row| row.touch != Touch::Read))||+
            }
        }
    };
}

tables! {
    instances: Instance, InstanceNo = |r| r.no;
    runs: Run, RunNo = |r| r.no;
    envelopes: Envelope, EnvelopeNo = |r| r.no;
    budgets: Budget, BudgetNo = |r| r.no;
    attempts: Attempt, (RunNo, AttemptNo) = |r| (r.run, r.no);
    leases: Lease, (RunNo, Slot) = |r| (r.run, r.slot);
    entries: Entry, (RunNo, Seq) = |r| (r.run, r.seq);
}

/// Lookups that an operation declared to a strict store, and the lookups that its decision made beyond them.
#[derive(Clone, Debug, Default)]
pub struct Declared {
    named: BTreeSet<Key<'static>>,
    missed: RefCell<Vec<Key<'static>>>,
}

impl Declared {
    pub fn of(named: BTreeSet<Key<'static>>) -> Self {
        Self { named, missed: RefCell::default() }
    }
}

/// Payload to store for an entry. Bytes that a dead process left in its place are overwritten.
#[derive(Clone, Debug)]
pub struct NewPayload {
    pub run: RunNo,
    pub seq: Seq,
    pub role: Role,
    pub payload: Payload,
}

/// Rows that one operation loaded, with everything that its decision changes and adds.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// Number of the operation.
    pub op: OpNo,
    pub numbers: Option<Numbers>,
    pub instances: Vec<Row<Instance>>,
    pub runs: Vec<Row<Run>>,
    /// Specs to write: of a run that is created or amended.
    pub specs: Vec<(RunNo, Spec)>,
    /// Specs as stored, read by the decision and not written back.
    pub known_specs: Vec<(RunNo, Spec)>,
    pub envelopes: Vec<Row<Envelope>>,
    pub budgets: Vec<Row<Budget>>,
    pub attempts: Vec<Row<Attempt>>,
    pub leases: Vec<Row<Lease>>,
    pub entries: Vec<Row<Entry>>,
    pub payloads: Vec<NewPayload>,
    pub state: state::rows::Rows,
    /// Runs to delete with everything that belongs to them: (run, envelope, namespace).
    pub forgotten: Vec<(RunNo, EnvelopeNo, String)>,
    /// Events of the decision, to be written with its rows.
    pub events: Vec<Event>,
    /// Lines that the decision adds to the ledger, to be written with its rows.
    pub posted: Vec<LedgerLine>,
    /// Rows of deliveries to endpoints that the decision asked for, as stored.
    pub deliveries: Vec<Delivery>,
    /// State of an endpoint's deliveries as the decision leaves it, to be written with it; `None`: unchanged.
    pub new_delivery: Option<Delivery>,
    /// Lookups that the operation declared; `None` in a store that is not strict.
    pub declared: Option<Box<Declared>>,
}

impl Loaded {
    /// Returns whether anything is to be written.
    pub fn is_touched(&self) -> bool {
        self.has_touched_rows()
            || self.state.is_touched()
            || !self.specs.is_empty()
            || !self.payloads.is_empty()
            || !self.forgotten.is_empty()
            || self.new_delivery.is_some()
    }

    /// Adds the rows of one query, as stored. A row that was loaded before is kept unchanged.
    pub fn extend<T: Table>(&mut self, values: impl IntoIterator<Item = T>) {
        let before = T::rows(self).len();
        for value in values {
            if T::rows(self)[..before].iter().all(|row| row.value.id() != value.id()) {
                self.add(Row::read(value));
            }
        }
    }

    fn add<T: Table>(&mut self, row: Row<T>) {
        let rows = T::rows_mut(self);
        // Most operations have one row of a table. A vector would begin with room for four, and rows are large.
        if rows.is_empty() {
            rows.reserve_exact(1);
        }
        rows.push(row);
    }

    pub fn find<T: Table>(&self, id: T::Id) -> Option<&T> {
        self.all::<T>().find(|value| value.id() == id)
    }

    /// Returns the loaded rows of a table.
    pub fn all<'a, T: Table + 'a>(&'a self) -> impl Iterator<Item = &'a T> + Clone {
        T::rows(self).iter().map(|row| &row.value)
    }

    /// Returns the entry with this name. Needs `Need::Keyed`.
    pub fn keyed(&self, kind: Kind, scope: &str, key: &str) -> Option<&Entry> {
        self.all::<Entry>().find(|e| e.kind == kind && &*e.scope == scope && e.key.as_deref() == Some(key))
    }

    /// Returns the row for a change and marks it to be written back.
    fn find_mut<T: Table>(&mut self, id: T::Id) -> Option<&mut T> {
        T::rows_mut(self).iter_mut().find(|row| row.value.id() == id).map(Row::touched)
    }

    /// Notes that a decision found no row and that none of the operation's needs had looked for it. `covers` names the
    /// needs that would have found it.
    fn missed(&self, covers: &[Key<'static>]) {
        if let Some(declared) = &self.declared
            && !covers.iter().any(|named| declared.named.contains(named))
        {
            declared.missed.borrow_mut().extend(covers.first());
        }
    }

    /// Returns the row with this key. `covers` names the needs that look for it.
    fn named<T: Table>(&self, id: T::Id, covers: &[Key<'static>]) -> Option<&T> {
        let found = self.find::<T>(id);
        if found.is_none() {
            self.missed(covers);
        }
        found
    }

    /// Returns the lookups that no need of the operation declared; empty for a store that is not strict.
    pub fn undeclared(&self) -> Vec<Key<'static>> {
        self.declared.as_ref().map(|d| d.missed.borrow().clone()).unwrap_or_default()
    }

    pub fn numbers(&self) -> Result<Numbers, Error> {
        self.numbers.ok_or(Error::NotLoaded("the next numbers"))
    }

    pub fn run(&self, no: RunNo) -> Result<&Run, Error> {
        self.named(no, &[Key::Run(no)]).ok_or_else(|| unknown_run(no))
    }

    pub fn run_mut(&mut self, no: RunNo) -> Result<&mut Run, Error> {
        self.run(no)?;
        self.find_mut::<Run>(no).ok_or_else(|| unknown_run(no))
    }

    pub fn run_by_id(&self, id: &RunId) -> Option<&Run> {
        self.all::<Run>().find(|r| r.id == *id)
    }

    pub fn spec(&self, run: RunNo) -> Option<&Spec> {
        let found = self.known_specs.iter().find(|s| s.0 == run).map(|s| &s.1);
        found.or_else(|| {
            self.missed(&[Key::Spec(run)]);
            None
        })
    }

    pub fn instance(&self, no: InstanceNo) -> Option<&Instance> {
        self.named(no, &[Key::Instance(no)])
    }

    pub fn instance_mut(&mut self, no: InstanceNo) -> Option<&mut Instance> {
        self.instance(no)?;
        self.find_mut(no)
    }

    pub fn envelope(&self, no: EnvelopeNo) -> Result<&Envelope, Error> {
        self.named(no, &[Key::Envelope(no)]).ok_or(Error::NotLoaded("envelope"))
    }

    pub fn envelope_mut(&mut self, no: EnvelopeNo) -> Result<&mut Envelope, Error> {
        self.envelope(no)?;
        self.find_mut(no).ok_or(Error::NotLoaded("envelope"))
    }

    pub fn budget_mut(&mut self, no: BudgetNo) -> Result<&mut Budget, Error> {
        self.find_mut(no).ok_or(Error::NotLoaded("the budget"))
    }

    pub fn attempt(&self, run: RunNo, no: AttemptNo) -> Option<&Attempt> {
        self.named((run, no), &[Key::Attempt(run, no), Key::OpenAttempts(run)])
    }

    pub fn attempt_mut(&mut self, run: RunNo, no: AttemptNo) -> Option<&mut Attempt> {
        self.attempt(run, no)?;
        self.find_mut((run, no))
    }

    /// Returns whether an attempt is open. Needs the attempt, or the run's open attempts.
    pub fn is_open(&self, run: RunNo, no: AttemptNo) -> bool {
        self.attempt(run, no).is_some_and(Attempt::is_open)
    }

    /// Returns whether the run has an open attempt. Needs `OpenAttempts`.
    pub fn has_open_attempt(&self, run: RunNo) -> bool {
        self.missed(&[Key::OpenAttempts(run)]);
        self.attempts.iter().any(|a| a.value.run == run && a.value.is_open())
    }

    pub fn lease(&self, run: RunNo, slot: Slot) -> Option<&Lease> {
        self.named((run, slot), &[Key::Lease(run, slot), Key::Leases(run)])
    }

    /// Sets the lease of the slot in the run.
    pub fn put_lease(&mut self, lease: Lease) {
        match self.lease(lease.run, lease.slot).is_some() {
            true => self.find_mut::<Lease>(lease.id()).into_iter().for_each(|held| *held = lease),
            false => self.add(Row::insert(lease)),
        }
    }

    pub fn entry(&self, run: RunNo, seq: Seq) -> Option<&Entry> {
        self.named((run, seq), &[Key::Entry(run, seq)])
    }

    pub fn entry_mut(&mut self, run: RunNo, seq: Seq) -> Option<&mut Entry> {
        self.entry(run, seq)?;
        self.find_mut((run, seq))
    }

    /// Adds an entry that this operation opens.
    pub fn insert_entry(&mut self, entry: Entry) {
        self.add(Row::insert(Entry { opened_by: self.op, ..entry }));
    }

    /// Adds a payload that is to be stored for an entry.
    pub fn keep_payload(&mut self, run: RunNo, seq: Seq, role: Role, payload: Payload) {
        self.payloads.push(NewPayload { run, seq, role, payload });
    }

    /// Moves an open entry to the actor. Closings by the process that had the entry before are refused from now on.
    /// `None` if the entry was not loaded.
    pub fn take_over(&mut self, actor: &Actor, seq: Seq) -> Option<&mut Entry> {
        let op = self.op;
        let entry = self.entry_mut(actor.run, seq)?;
        entry.instance = Some(actor.instance);
        entry.attempt = actor.attempt;
        entry.opened_by = op;
        Some(entry)
    }

    /// Returns the [`Opening`] of entry `seq`, which is needed to close the entry. This operation has opened the entry
    /// or taken it over.
    pub fn opening(&self, actor: &Actor, seq: Seq) -> Opening {
        Opening { run: actor.run, seq, instance: actor.instance, op: self.op }
    }
}

fn unknown_run(no: RunNo) -> Error {
    Error::UnknownRun { id: format!("#{no}") }
}
