//! What a store loads for one operation, and what the decision changed in it.
//!
//! An operation names its `Need`s; the store loads them inside the write transaction; `decide`
//! changes the rows in place; the store writes back the rows that were touched. A decision can
//! only see what it named, so the strict memory store finds a forgotten need at once.

use std::sync::Arc;

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
    Envelopes(Vec<EnvelopeNo>),
    /// Every named budget, those that were removed among them.
    Budgets,
    Budget(BudgetNo),
    /// The named budgets of a run, which is loaded, or of all; with the envelopes of their newest windows, and the
    /// next free envelope number where one has no window now. No store looks at it: see `windows::complete`.
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
    /// The same, among those up to a place.
    KeyedUpTo(RunNo, Kind, String, String, Seq),
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
    pub numbers: Numbers,
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
}

impl Loaded {
    /// Whether anything is to be written.
    pub fn is_touched(&self) -> bool {
        fn any<T>(rows: &[Row<T>]) -> bool {
            rows.iter().any(|r| r.touch != Touch::Read)
        }
        any(&self.instances)
            || any(&self.runs)
            || any(&self.envelopes)
            || any(&self.budgets)
            || any(&self.attempts)
            || any(&self.leases)
            || any(&self.entries)
            || self.state.is_touched()
            || !self.specs.is_empty()
            || !self.payloads.is_empty()
            || !self.forgotten.is_empty()
    }

    pub fn run(&self, no: RunNo) -> Result<&Run, Error> {
        self.runs.iter().map(|r| &r.value).find(|r| r.no == no).ok_or_else(|| unknown_run(no))
    }

    pub fn run_mut(&mut self, no: RunNo) -> Result<&mut Run, Error> {
        self.runs.iter_mut().find(|r| r.value.no == no).map(Row::touched).ok_or_else(|| unknown_run(no))
    }

    pub fn run_by_id(&self, id: &RunId) -> Option<&Run> {
        self.runs.iter().map(|r| &r.value).find(|r| r.id == *id)
    }

    pub fn spec(&self, run: RunNo) -> Option<&Spec> {
        self.known_specs.iter().find(|s| s.0 == run).map(|s| &s.1)
    }

    pub fn instance(&self, no: InstanceNo) -> Option<&Instance> {
        self.instances.iter().map(|r| &r.value).find(|i| i.no == no)
    }

    pub fn instance_mut(&mut self, no: InstanceNo) -> Option<&mut Instance> {
        self.instances.iter_mut().find(|r| r.value.no == no).map(Row::touched)
    }

    pub fn envelope(&self, no: EnvelopeNo) -> Result<&Envelope, Error> {
        self.envelopes.iter().map(|r| &r.value).find(|e| e.no == no).ok_or(Error::NotLoaded("envelope"))
    }

    pub fn envelope_mut(&mut self, no: EnvelopeNo) -> Result<&mut Envelope, Error> {
        self.envelopes
            .iter_mut()
            .find(|r| r.value.no == no)
            .map(Row::touched)
            .ok_or(Error::NotLoaded("envelope"))
    }

    pub fn budget_mut(&mut self, no: BudgetNo) -> Result<&mut Budget, Error> {
        self.budgets
            .iter_mut()
            .find(|r| r.value.no == no)
            .map(Row::touched)
            .ok_or(Error::NotLoaded("the budget"))
    }

    pub fn attempt(&self, run: RunNo, no: AttemptNo) -> Option<&Attempt> {
        self.attempts.iter().map(|r| &r.value).find(|a| a.run == run && a.no == no)
    }

    pub fn attempt_mut(&mut self, run: RunNo, no: AttemptNo) -> Option<&mut Attempt> {
        self.attempts.iter_mut().find(|r| r.value.run == run && r.value.no == no).map(Row::touched)
    }

    /// Whether an attempt is open, as far as `Need::OpenAttempts` loaded them.
    pub fn is_open(&self, run: RunNo, no: AttemptNo) -> bool {
        self.attempt(run, no).is_some_and(Attempt::is_open)
    }

    pub fn has_open_attempt(&self, run: RunNo) -> bool {
        self.attempts.iter().any(|a| a.value.run == run && a.value.is_open())
    }

    pub fn lease(&self, run: RunNo, slot: Slot) -> Option<&Lease> {
        self.leases.iter().map(|r| &r.value).find(|l| l.run == run && l.slot == slot)
    }

    /// Sets the lease of (run, slot).
    pub fn put_lease(&mut self, lease: Lease) {
        match self.leases.iter_mut().find(|r| r.value.run == lease.run && r.value.slot == lease.slot) {
            Some(row) => *row.touched() = lease,
            None => self.leases.push(Row::insert(lease)),
        }
    }

    pub fn entry(&self, run: RunNo, seq: Seq) -> Option<&Entry> {
        self.entries.iter().map(|r| &r.value).find(|e| e.run == run && e.seq == seq)
    }

    pub fn entry_mut(&mut self, run: RunNo, seq: Seq) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|r| r.value.run == run && r.value.seq == seq).map(Row::touched)
    }

    pub fn insert_entry(&mut self, entry: Entry) {
        self.entries.push(Row::insert(entry));
    }
}

fn unknown_run(no: RunNo) -> Error {
    Error::UnknownRun { id: format!("#{no}") }
}
