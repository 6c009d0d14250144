//! What a store loads for one operation, and what the decision changed in it.
//!
//! An operation names its `Need`s; `store::load` fetches them inside the write transaction; `decide`
//! changes the rows in place; the store writes back the rows that were touched. A decision can
//! only see what it named: the strict memory store refuses one that looks for anything else.

use std::{cell::RefCell, collections::BTreeSet, sync::Arc};

use crate::{
    engine::Error,
    envelope::{Envelope, budget::Budget},
    journal::{Entry, Kind, Role, payload::Payload},
    run::{
        Run, Spec,
        attempt::Attempt,
        instance::{Instance, Lease},
    },
    state::{self, Name},
    words::{
        digest::MatchKey,
        id::{AttemptNo, BudgetNo, EnvelopeNo, InstanceNo, RunId, RunNo, Seq, Slot},
    },
};

/// One thing to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// The next free run, envelope and instance numbers.
    Numbers,
    Instance(InstanceNo),
    RunById(RunId),
    /// The run, its own envelope and every ancestor's, in the order of their numbers.
    Run(RunNo),
    /// Every named budget, those that were removed among them.
    Budgets,
    Budget(BudgetNo),
    /// The named budgets of a run, which another need loads, or of all; with the envelopes of their newest windows,
    /// and the next free envelope number where one has no window now.
    Windows(Option<RunNo>),
    Attempt(RunNo, AttemptNo),
    /// What was said of the run when it was created.
    Spec(RunNo),
    OpenAttempts(RunNo),
    Labelled(RunNo, String),
    /// The lease and the instance that holds it.
    Lease(RunNo, Slot),
    /// Every lease of the run, and the instances that hold them.
    Leases(RunNo),
    /// The entry, the lost calls it is a retry of, and the items and steps that any of them was made in.
    Entry(RunNo, Seq),
    /// The newest entry of the item with this key, and the instance that has it.
    Item(RunNo, String),
    /// Every call with this key, oldest first.
    Matching(RunNo, MatchKey),
    /// The newest entry of this kind, scope and key.
    Keyed(RunNo, Kind, String, String),
    /// Open calls of an instance with what they repeat and were made in, its leases, the open attempts it drives, and all their runs.
    OwnedBy(InstanceNo),
    /// A key of the state as it stands, its namespace, and the store's newest position.
    State(Arc<Name>),
    /// What the transaction with this id came to.
    Transaction(Arc<str>),
    Namespace(String),
    /// Keys of a namespace that have older versions, behind the key of number `after`, in the order of
    /// their numbers.
    Compactable {
        namespace: String,
        before: Option<i64>,
        after: i64,
        limit: usize,
    },
}

/// The next free numbers of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    pub run: RunNo,
    pub envelope: EnvelopeNo,
    pub instance: InstanceNo,
}

/// Whether a row is to be written back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Touch {
    #[default]
    Read,
    Update,
    Insert,
}

/// A loaded row.
#[derive(Clone, Debug)]
pub struct Row<T> {
    pub value: T,
    pub touch: Touch,
    /// Another run's: a change is a row of its own.
    shared: bool,
}

impl<T> Row<T> {
    pub fn read(value: T) -> Self {
        Self { value, touch: Touch::Read, shared: false }
    }
    pub fn insert(value: T) -> Self {
        Self { value, touch: Touch::Insert, shared: false }
    }
    /// A row that is shared with another run, and that this run has not yet: see `origin`.
    pub fn shared(value: T) -> Self {
        Self { value, touch: Touch::Read, shared: true }
    }
    /// The value, to be changed: the row will be written back.
    pub fn touched(&mut self) -> &mut T {
        if self.touch == Touch::Read {
            self.touch = if self.shared { Touch::Insert } else { Touch::Update };
        }
        &mut self.value
    }
}

/// A table whose rows an operation loads.
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
            /// Puts the rows of each table in the order of their keys, whatever the order of their loading.
            pub fn sort(&mut self) {
                $(self.$rows.sort_by_key(|row| row.value.id());)+
            }

            /// Whether a row is to be written back.
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

/// What a decision may ask for by its key. Rows that the decision makes itself need no declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Named {
    Instance(InstanceNo),
    Run(RunNo),
    Envelope(EnvelopeNo),
    Attempt(RunNo, AttemptNo),
    OpenAttempts(RunNo),
    Spec(RunNo),
    Lease(RunNo, Slot),
    Leases(RunNo),
    Entry(RunNo, Seq),
}

/// What was asked of a strict store, and what a decision looked for beside it.
#[derive(Clone, Debug, Default)]
pub struct Declared {
    named: BTreeSet<Named>,
    missed: RefCell<Vec<Named>>,
}

impl Declared {
    pub fn of(named: BTreeSet<Named>) -> Self {
        Self { named, missed: RefCell::default() }
    }
}

/// Stored bytes to be added; or put in the place of what a dead process had left there.
#[derive(Clone, Debug)]
pub struct NewPayload {
    pub run: RunNo,
    pub seq: Seq,
    pub role: Role,
    pub payload: Payload,
}

/// The rows of one operation.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    pub numbers: Option<Numbers>,
    pub instances: Vec<Row<Instance>>,
    pub runs: Vec<Row<Run>>,
    /// Written when a run is created, and when it is given other prices.
    pub specs: Vec<(RunNo, Spec)>,
    /// As they stand, for the decision only.
    pub known_specs: Vec<(RunNo, Spec)>,
    pub envelopes: Vec<Row<Envelope>>,
    pub budgets: Vec<Row<Budget>>,
    pub attempts: Vec<Row<Attempt>>,
    pub leases: Vec<Row<Lease>>,
    pub entries: Vec<Row<Entry>>,
    pub payloads: Vec<NewPayload>,
    pub state: state::rows::Rows,
    /// To be deleted with all that is theirs: the run, its envelope, its namespace.
    pub forgotten: Vec<(RunNo, EnvelopeNo, String)>,
    /// Kept by a strict store only.
    pub declared: Option<Box<Declared>>,
}

impl Loaded {
    /// Whether anything is to be written.
    pub fn is_touched(&self) -> bool {
        self.has_touched_rows()
            || self.state.is_touched()
            || !self.specs.is_empty()
            || !self.payloads.is_empty()
            || !self.forgotten.is_empty()
    }

    /// Adds the rows of one query, as they stand in the store. A row that is there already stays as it is.
    pub fn extend<T: Table>(&mut self, values: impl IntoIterator<Item = T>) {
        let before = T::rows(self).len();
        for value in values {
            if T::rows(self)[..before].iter().all(|row| row.value.id() != value.id()) {
                T::rows_mut(self).push(Row::read(value));
            }
        }
    }

    pub fn find<T: Table>(&self, id: T::Id) -> Option<&T> {
        T::rows(self).iter().map(|row| &row.value).find(|value| value.id() == id)
    }

    /// The row, to be changed: it will be written back.
    fn find_mut<T: Table>(&mut self, id: T::Id) -> Option<&mut T> {
        T::rows_mut(self).iter_mut().find(|row| row.value.id() == id).map(Row::touched)
    }

    /// Notes that a decision found no row where none of its needs had looked. `covers` names the needs that would
    /// have found it.
    fn missed(&self, covers: &[Named]) {
        if let Some(declared) = &self.declared
            && !covers.iter().any(|named| declared.named.contains(named))
        {
            declared.missed.borrow_mut().extend(covers.first());
        }
    }

    /// The rows that the decision looked for and no need of its operation names; empty where nobody keeps count.
    pub fn undeclared(&self) -> Vec<Named> {
        self.declared.as_ref().map(|d| d.missed.borrow().clone()).unwrap_or_default()
    }

    pub fn numbers(&self) -> Result<Numbers, Error> {
        self.numbers.ok_or(Error::NotLoaded("the next numbers"))
    }

    pub fn run(&self, no: RunNo) -> Result<&Run, Error> {
        self.find::<Run>(no).ok_or_else(|| {
            self.missed(&[Named::Run(no)]);
            unknown_run(no)
        })
    }

    pub fn run_mut(&mut self, no: RunNo) -> Result<&mut Run, Error> {
        self.run(no)?;
        self.find_mut::<Run>(no).ok_or_else(|| unknown_run(no))
    }

    pub fn run_by_id(&self, id: &RunId) -> Option<&Run> {
        self.runs.iter().map(|r| &r.value).find(|r| r.id == *id)
    }

    pub fn spec(&self, run: RunNo) -> Option<&Spec> {
        let found = self.known_specs.iter().find(|s| s.0 == run).map(|s| &s.1);
        found.or_else(|| {
            self.missed(&[Named::Spec(run)]);
            None
        })
    }

    pub fn instance(&self, no: InstanceNo) -> Option<&Instance> {
        self.find::<Instance>(no).or_else(|| {
            self.missed(&[Named::Instance(no)]);
            None
        })
    }

    pub fn instance_mut(&mut self, no: InstanceNo) -> Option<&mut Instance> {
        self.instance(no)?;
        self.find_mut(no)
    }

    pub fn envelope(&self, no: EnvelopeNo) -> Result<&Envelope, Error> {
        self.find::<Envelope>(no).ok_or_else(|| {
            self.missed(&[Named::Envelope(no)]);
            Error::NotLoaded("envelope")
        })
    }

    pub fn envelope_mut(&mut self, no: EnvelopeNo) -> Result<&mut Envelope, Error> {
        self.envelope(no)?;
        self.find_mut(no).ok_or(Error::NotLoaded("envelope"))
    }

    pub fn budget_mut(&mut self, no: BudgetNo) -> Result<&mut Budget, Error> {
        self.find_mut(no).ok_or(Error::NotLoaded("the budget"))
    }

    pub fn attempt(&self, run: RunNo, no: AttemptNo) -> Option<&Attempt> {
        self.find::<Attempt>((run, no)).or_else(|| {
            self.missed(&[Named::Attempt(run, no), Named::OpenAttempts(run)]);
            None
        })
    }

    pub fn attempt_mut(&mut self, run: RunNo, no: AttemptNo) -> Option<&mut Attempt> {
        self.attempt(run, no)?;
        self.find_mut((run, no))
    }

    /// Whether an attempt is open. Needs the attempt, or the run's open ones.
    pub fn is_open(&self, run: RunNo, no: AttemptNo) -> bool {
        self.attempt(run, no).is_some_and(Attempt::is_open)
    }

    /// Whether the run has an open attempt. Needs `OpenAttempts`.
    pub fn has_open_attempt(&self, run: RunNo) -> bool {
        self.missed(&[Named::OpenAttempts(run)]);
        self.attempts.iter().any(|a| a.value.run == run && a.value.is_open())
    }

    pub fn lease(&self, run: RunNo, slot: Slot) -> Option<&Lease> {
        self.find::<Lease>((run, slot)).or_else(|| {
            self.missed(&[Named::Lease(run, slot), Named::Leases(run)]);
            None
        })
    }

    /// Sets the lease of (run, slot).
    pub fn put_lease(&mut self, lease: Lease) {
        match self.lease(lease.run, lease.slot).is_some() {
            true => self.find_mut::<Lease>(lease.id()).into_iter().for_each(|held| *held = lease),
            false => self.leases.push(Row::insert(lease)),
        }
    }

    pub fn entry(&self, run: RunNo, seq: Seq) -> Option<&Entry> {
        self.find::<Entry>((run, seq)).or_else(|| {
            self.missed(&[Named::Entry(run, seq)]);
            None
        })
    }

    pub fn entry_mut(&mut self, run: RunNo, seq: Seq) -> Option<&mut Entry> {
        self.entry(run, seq)?;
        self.find_mut((run, seq))
    }

    pub fn insert_entry(&mut self, entry: Entry) {
        self.entries.push(Row::insert(entry));
    }
}

fn unknown_run(no: RunNo) -> Error {
    Error::UnknownRun { id: format!("#{no}") }
}
