//! Strict reference store in memory: plain maps, with every operation its own commit.
//!
//! Checks what databases would notice only sometimes: rows inserted twice, updates of missing rows, negative sums, and
//! money created or lost in a decision. Can simulate a power loss: operations committed but not synced are gone.

mod answer;
mod state;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    engine::{
        Loaded, Need, Numbers, Op,
        loaded::{Key, Table},
        op,
    },
    envelope::{
        Budget, Envelope,
        audit::{Gone, Sums},
    },
    events::{self, Event, Mark, delivery::Delivery},
    journal::{Entry, Kind, LedgerLine, Payload, Role, State},
    run::{Admission, Attempt, Instance, Lease, Run, Spec, TokenKey},
    store::{
        Answer, Durability, Error, Question, Store, Ticket,
        load::{self, Fetch},
    },
    words::{
        AttemptNo, BudgetNo, Clock, EnvelopeNo, Fence, InstanceNo, Micros, OpNo, Row, RunNo, Seq, Slot, Touch,
    },
};

pub use state::StateTables;

/// Rows of all tables.
#[derive(Clone, Default)]
pub struct Tables {
    pub instances: BTreeMap<InstanceNo, Instance>,
    pub runs: BTreeMap<RunNo, Run>,
    pub specs: BTreeMap<RunNo, Spec>,
    pub envelopes: BTreeMap<EnvelopeNo, Envelope>,
    pub budgets: BTreeMap<BudgetNo, Budget>,
    pub attempts: BTreeMap<(RunNo, AttemptNo), Attempt>,
    pub leases: BTreeMap<(RunNo, Slot), Lease>,
    pub entries: BTreeMap<(RunNo, Seq), Entry>,
    pub payloads: BTreeMap<(RunNo, Seq, Role, u32), Payload>,
    pub state: StateTables,
    /// All events, shared with the copies of these tables: events never change, and a simulator copies the tables at
    /// each write.
    pub events: Vec<Arc<Event>>,
    pub deliveries: BTreeMap<String, Delivery>,
    /// Lines of the ledger, as commits have summed them.
    pub sums: Vec<LedgerLine>,
}

/// Store in memory.
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    keys: Vec<TokenKey>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    committed: Arc<Tables>,
    /// Tables as a power loss would leave them: with synced operations only.
    synced: Arc<Tables>,
    /// Number of commits so far.
    commits: i64,
    /// Number of the last operation. A loss of power does not set it back.
    last_op: OpNo,
}

impl MemoryStore {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let keys = vec![TokenKey { id: 1, secret: [7; 32] }];
        Self { clock, keys, inner: Mutex::default() }
    }

    /// Drops operations that were committed and not synced, as a power loss does.
    pub fn lose_power(&self) {
        let mut inner = self.lock();
        let synced = inner.synced.clone();
        inner.commit(synced, Durability::Synced);
    }

    /// Returns a copy of everything that is committed, for an oracle.
    pub fn tables(&self) -> Tables {
        Tables::clone(&self.lock().committed)
    }

    /// Returns the committed tables, and the number of commits so far. Later commits leave these tables as they are.
    pub fn snapshot(&self) -> (Arc<Tables>, i64) {
        let inner = self.lock();
        (inner.committed.clone(), inner.commits)
    }

    /// Commits tables that were changed on a copy, for a simulator with a group commit of its own.
    pub fn commit(&self, tables: Arc<Tables>, durability: Durability) {
        self.lock().commit(tables, durability);
    }

    /// Returns a number from which a simulator's own group commit numbers its operations. Each call sets a million
    /// numbers apart.
    pub fn op_numbers(&self) -> OpNo {
        self.lock().next_op(1_000_000)
    }

    /// Calls `look` with the committed tables and with the tables that a power loss would leave, for an oracle.
    pub fn inspect<R>(&self, look: impl FnOnce(&Tables, &Tables) -> R) -> R {
        let inner = self.lock();
        look(&inner.committed, &inner.synced)
    }

    /// Changes rows without the engine, synced: for simulators that plant a defect.
    pub fn tamper<R>(&self, change: impl FnOnce(&mut Tables) -> R) -> R {
        let mut inner = self.lock();
        let mut tables = Tables::clone(&inner.committed);
        let out = change(&mut tables);
        inner.commit(Arc::new(tables), Durability::Synced);
        out
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic in a decision leaves the tables unchanged: rows are put back only after it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn next_op(&mut self, n: i64) -> OpNo {
        self.last_op.0 += n;
        self.last_op
    }

    fn commit(&mut self, tables: Arc<Tables>, durability: Durability) {
        self.committed = tables;
        self.commits += 1;
        if durability == Durability::Synced {
            self.synced = self.committed.clone();
        }
    }
}

impl Tables {
    /// Loads the rows that `needs` name, and no others.
    pub fn load(&self, needs: &[Need], now: Micros) -> Result<Box<Loaded>, Error> {
        load::load_strictly(&mut &*self, needs, now)
    }

    fn fetch_one(&self, key: &Key<'_>, l: &mut Loaded) {
        match *key {
            Key::Numbers => {
                let next = |last: Option<i64>| last.unwrap_or(0) + 1;
                l.numbers = Some(Numbers {
                    run: RunNo(next(self.runs.keys().next_back().map(|n| n.0))),
                    envelope: EnvelopeNo(next(self.envelopes.keys().next_back().map(|n| n.0))),
                    instance: InstanceNo(next(self.instances.keys().next_back().map(|n| n.0))),
                });
            }
            Key::Instance(no) => l.extend(self.instances.get(&no).cloned()),
            Key::RunById(id) => l.extend(self.runs.values().find(|r| r.id == *id).cloned()),
            Key::OfCommand(key) => {
                l.extend(self.runs.values().rfind(|r| r.command_key.as_deref() == Some(key)).cloned());
            }
            Key::Run(no) => l.extend(self.runs.get(&no).cloned()),
            Key::Envelope(no) => l.extend(self.envelopes.get(&no).cloned()),
            Key::Budgets => l.extend(self.budgets.values().cloned()),
            Key::Budget(no) => l.extend(self.budgets.get(&no).cloned()),
            Key::Attempt(run, no) => l.extend(self.attempts.get(&(run, no)).cloned()),
            Key::Spec(run) => l.known_specs.extend(self.specs.get(&run).map(|spec| (run, spec.clone()))),
            Key::OpenAttempts(run) => l.extend(self.attempts_of(run).filter(|a| a.is_open()).cloned()),
            Key::Labelled(run, label) => {
                l.extend(self.attempts_of(run).filter(|a| a.label.as_deref() == Some(label)).cloned());
            }
            Key::Lease(run, slot) => l.extend(self.leases.get(&(run, slot)).copied()),
            Key::Leases(run) => l.extend(self.leases.values().filter(|x| x.run == run).copied()),
            Key::LeasesOf(no) => l.extend(self.leases.values().filter(|x| x.instance == no).copied()),
            Key::Entry(run, seq) => l.extend(self.entries.get(&(run, seq)).cloned()),
            Key::Matching(run, key) => {
                l.extend(self.entries_of(run).filter(|e| e.match_key == Some(key)).cloned());
            }
            Key::Newest(of) => l.extend(self.entries_of(of.run).rev().find(|e| of.is(e)).cloned()),
            Key::OpenCalls(no) => l.extend(
                self.entries
                    .values()
                    .filter(|e| e.instance == Some(no) && e.state == State::Open && e.kind == Kind::Call)
                    .cloned(),
            ),
            Key::Delivery(name) => l.deliveries.extend(self.deliveries.get(name).cloned()),
            Key::Position => l.state.position = self.state.position(),
            Key::Namespace(name) => self.state.load_namespace(l, name),
            Key::State(name) => self.state.load_key(l, name),
            Key::Transaction(id) => l.state.outcome = self.state.outcome(id),
            Key::Compactable { namespace, before, after, limit } => {
                self.state.load_compactable(l, namespace, before, after, limit);
            }
        }
    }

    fn attempts_of(&self, run: RunNo) -> impl DoubleEndedIterator<Item = &Attempt> {
        self.attempts.range((run, AttemptNo(0))..=(run, AttemptNo(i64::MAX))).map(|(_, a)| a)
    }

    pub fn entries_of(&self, run: RunNo) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.range((run, Seq(0))..=(run, Seq(i64::MAX))).map(|(_, e)| e)
    }

    /// Writes touched rows back. Panics on changes that no correct decision makes.
    pub fn apply(&mut self, l: Loaded) {
        put(&mut self.instances, l.instances);
        put(&mut self.runs, l.runs);
        put(&mut self.envelopes, l.envelopes);
        put(&mut self.budgets, l.budgets);
        put(&mut self.attempts, l.attempts);
        put(&mut self.leases, l.leases);
        put(&mut self.entries, l.entries);
        self.state.apply(l.state);
        self.deliveries.extend(l.new_delivery.map(|d| (d.name.clone(), d)));
        for e in l.events {
            let no = self.events.last().map_or(1, |last| last.mark.no + 1);
            let mark = Mark { transaction: 0, no };
            let event = Event { mark, ..e };
            self.events.push(Arc::new(event));
        }
        l.posted.into_iter().for_each(|line| line.post(&mut self.sums));
        self.specs.extend(l.specs);
        for (run, envelope, namespace) in l.forgotten {
            self.runs.remove(&run);
            self.specs.remove(&run);
            self.envelopes.remove(&envelope);
            self.attempts.retain(|key, _| key.0 != run);
            self.leases.retain(|key, _| key.0 != run);
            self.entries.retain(|key, _| key.0 != run);
            self.payloads.retain(|key, _| key.0 != run);
            self.sums.retain(|line| line.run != run);
            self.state.forget(&namespace);
            self.events.retain(|e| e.run != Some(run) || e.kind == events::Kind::RunRemoved);
        }
        for p in l.payloads {
            let old = self.payloads.insert((p.run, p.seq, p.role, p.payload.part), p.payload);
            // A step that is begun anew after a death may find parts of a result that was not completely stored.
            let was_part = |old: Payload| old.decode().is_err();
            assert!(old.is_none_or(was_part), "payload {:?} of entry {} written twice", p.role, p.seq);
        }
    }

    /// Returns the envelopes that a call is charged to: its run's, its ancestors', and the windows it was admitted under.
    pub fn charges<'a>(&'a self, e: &'a Entry) -> impl Iterator<Item = EnvelopeNo> + 'a {
        self.runs[&e.run].charges.iter().chain(e.windows()).copied()
    }

    /// Returns an inconsistency of the tables, or `None` if they are consistent: every envelope's sums must
    /// equal those of its entries, as must the ledger's, no limit may be passed except by an overrun, and no lease's
    /// fence may be above its run's.
    pub fn inconsistency(&self) -> Option<String> {
        let mut gone = Gone::default();
        let families: BTreeMap<EnvelopeNo, bool> =
            self.runs.values().rev().map(|run| (run.envelope(), gone.child_of(run))).collect();
        // `admission = "observe"` accepts one call's excess for each concurrent call.
        let mut charged: BTreeMap<EnvelopeNo, (Sums, bool)> = BTreeMap::new();
        for e in self.entries.values() {
            let observed = self.runs[&e.run].policy.admission == Admission::Observe;
            for envelope in self.charges(e) {
                let (sums, is_observed) = charged.entry(envelope).or_default();
                sums.add(e);
                *is_observed |= observed;
            }
        }
        for envelope in self.envelopes.values() {
            let (sums, observed) = charged.remove(&envelope.no).unwrap_or_default();
            let forgotten = families.get(&envelope.no).copied().unwrap_or_else(|| gone.any());
            if let Some(wrong) = sums.differ(envelope, forgotten) {
                return Some(format!("envelope {}: {wrong}", envelope.no));
            }
            if forgotten || observed {
                continue;
            }
            if let Some(wrong) = sums.passed(envelope) {
                return Some(format!("envelope {}: {wrong}", envelope.no));
            }
        }
        let fence = |l: &&Lease| l.fence > self.runs.get(&l.run).map_or(Fence(0), |r| r.fence);
        if let Some(lease) = self.leases.values().find(fence) {
            return Some(format!("the lease of run {} is ahead of its run", lease.run));
        }
        let lines = LedgerLine::sum(self.entries.values().filter_map(LedgerLine::of));
        let kept = LedgerLine::sum(self.sums.iter().cloned());
        (lines != kept).then(|| format!("the ledger has {kept:?}, and its calls add up to {lines:?}"))
    }
}

impl Fetch for &Tables {
    fn fetch(&mut self, keys: &[Key<'_>], into: &mut Loaded) -> Result<(), Error> {
        keys.iter().for_each(|key| self.fetch_one(key, into));
        Ok(())
    }
}

fn put<T: Table>(table: &mut BTreeMap<T::Id, T>, rows: Vec<Row<T>>)
where
    T::Id: std::fmt::Debug,
{
    for row in rows {
        let (key, what) = (row.value.id(), std::any::type_name::<T>());
        match row.touch {
            Touch::Read => {}
            Touch::Insert => {
                let old = table.insert(key, row.value);
                assert!(old.is_none(), "{what} {key:?} inserted twice");
            }
            Touch::Update => {
                let old = table.insert(key, row.value);
                assert!(old.is_some(), "{what} {key:?} updated, and it was not there");
            }
        }
    }
}

impl Store for MemoryStore {
    fn submit(&self, op: Op, durability: Durability) -> Ticket {
        let mut inner = self.lock();
        let now = self.clock.now();
        let mut loaded = match inner.committed.load(&op.needs(), now) {
            Ok(loaded) => loaded,
            Err(e) => return Ticket::ready(Err(e)),
        };
        loaded.op = inner.next_op(1);
        let outcome = op::decide(&op, &mut loaded, now);
        let undeclared = loaded.undeclared();
        assert!(undeclared.is_empty(), "{} looks for {undeclared:?}, which no need of it names", op.name());
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(e) => return Ticket::ready(Err(e.into())),
        };
        Arc::make_mut(&mut inner.committed).apply(*loaded);
        let tables = inner.committed.clone();
        inner.commit(tables, durability);
        Ticket::ready(Ok(outcome))
    }

    fn answer(&self, question: &Question) -> Result<Answer, Error> {
        match question {
            Question::TokenKeys {} => Ok(Answer::TokenKeys(self.keys.clone())),
            Question::Now {} => Ok(Answer::Now(self.clock.now())),
            question => self.lock().committed.answer(question),
        }
    }

    fn place(&self) -> String {
        "memory".into()
    }
}
