//! Strict reference store in memory: plain maps, with every operation its own commit.
//!
//! Checks what databases would notice only sometimes: rows inserted twice, updates of missing rows, negative sums, and
//! money created or lost in a decision. Can simulate a power loss: operations committed but not synced are gone.

mod journal;
mod state;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    engine::{
        loaded::{Loaded, Need, Numbers, Table},
        op::{self, Op},
    },
    envelope::{
        Envelope,
        audit::{Gone, Sums},
        budget::{Budget, BudgetView},
        unit::Unit,
    },
    events::{self, Event, EventQuery, Mark, delivery::Delivery},
    journal::{Entry, Kind, Role, State, job::ItemRow, payload::Payload},
    run::{
        Admission, Run, Spec,
        attempt::Attempt,
        instance::{Instance, Lease, Life},
        status::Status,
        token::TokenKey,
    },
    store::filter::ApprovalFilter,
    store::{
        Durability, Error, LedgerLine, Page, RunFilter, RunView, Sought, StepRow, Store, Ticket,
        load::{self, Fetch, Key},
    },
    words::{
        clock::Clock,
        id::{AttemptNo, BudgetNo, EnvelopeNo, Fence, InstanceNo, Micros, OpNo, RunId, RunNo, Seq, Slot},
        row::{Row, Touch},
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
            let event = Event { mark, at: e.at, run: e.run, seq: e.seq, kind: e.kind, about: e.about };
            self.events.push(Arc::new(event));
        }
        self.specs.extend(l.specs);
        for (run, envelope, namespace) in l.forgotten {
            self.runs.remove(&run);
            self.specs.remove(&run);
            self.envelopes.remove(&envelope);
            self.attempts.retain(|key, _| key.0 != run);
            self.leases.retain(|key, _| key.0 != run);
            self.entries.retain(|key, _| key.0 != run);
            self.payloads.retain(|key, _| key.0 != run);
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
    /// equal those of its entries, no limit may be passed except by an overrun, and no lease's fence may be
    /// above its run's.
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
        self.leases.values().find(fence).map(|l| format!("the lease of run {} is ahead of its run", l.run))
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

    fn run_no(&self, id: &RunId) -> Result<Option<RunNo>, Error> {
        Ok(self.lock().committed.runs.values().find(|r| r.id == *id).map(|r| r.no))
    }

    fn run(&self, no: RunNo) -> Result<Option<RunView>, Error> {
        let inner = self.lock();
        let t = &inner.committed;
        Ok(t.runs.get(&no).map(|run| RunView {
            run: run.clone(),
            spec: t.specs.get(&no).cloned().unwrap_or_default(),
            envelope: t.envelopes[&run.envelope()].clone(),
        }))
    }

    fn runs(&self, filter: &RunFilter) -> Result<Vec<RunView>, Error> {
        let numbers: Vec<RunNo> = self
            .lock()
            .committed
            .runs
            .values()
            .rev()
            .filter(|r| filter.before.is_none_or(|b| r.no < b))
            .filter(|r| r.job.is_some() || !filter.jobs)
            .filter(|r| filter.status.is_none_or(|s| r.status == s))
            .filter(|r| filter.command_key.is_none() || r.command_key == filter.command_key)
            .take(filter.limit)
            .map(|r| r.no)
            .collect();
        let views: Result<Vec<_>, _> = numbers.into_iter().map(|no| self.run(no)).collect();
        Ok(views?.into_iter().flatten().collect())
    }

    fn statuses(&self) -> Result<Vec<(Status, i64)>, Error> {
        let inner = self.lock();
        let with = |status| inner.committed.runs.values().filter(|r| r.status == status).count() as i64;
        Ok(Status::ALL.map(|status| (status, with(status))).into_iter().filter(|(_, n)| *n > 0).collect())
    }

    fn approvals(&self, filter: &ApprovalFilter) -> Result<Vec<Entry>, Error> {
        Ok(self.lock().committed.approvals(filter))
    }

    fn envelope(&self, no: EnvelopeNo) -> Result<Option<Envelope>, Error> {
        Ok(self.lock().committed.envelopes.get(&no).cloned())
    }

    fn budgets(&self) -> Result<Vec<BudgetView>, Error> {
        let inner = self.lock();
        let t = &inner.committed;
        let standing = t.budgets.values().filter(|b| !b.removed).cloned();
        Ok(standing
            .map(|budget| {
                let envelope = budget.window.and_then(|w| t.envelopes.get(&w.envelope).cloned());
                BudgetView { budget, envelope }
            })
            .collect())
    }

    fn attempts(&self, run: RunNo) -> Result<Vec<Attempt>, Error> {
        Ok(self.lock().committed.attempts_of(run).cloned().collect())
    }

    fn entry(&self, run: RunNo, seq: Seq) -> Result<Option<Entry>, Error> {
        Ok(self.lock().committed.entries.get(&(run, seq)).cloned())
    }

    fn entries(&self, run: RunNo, after: Seq, limit: usize) -> Result<Vec<Entry>, Error> {
        Ok(self.lock().committed.entries_of(run).filter(|e| e.seq > after).take(limit).cloned().collect())
    }

    fn items(&self, run: RunNo, page: &Page) -> Result<Vec<(ItemRow, Option<Payload>)>, Error> {
        Ok(self.lock().committed.items_of(run, *page).collect())
    }

    fn steps(&self, run: RunNo, after: Seq, limit: usize) -> Result<Vec<(StepRow, Option<Payload>)>, Error> {
        Ok(self.lock().committed.steps_of(run, after).take(limit).collect())
    }

    fn newest(&self, run: RunNo, sought: &Sought<'_>) -> Result<Option<Entry>, Error> {
        let inner = self.lock();
        Ok(inner.committed.entries_of(run).rev().find(|e| sought.is(e)).cloned())
    }

    fn newest_request(&self, run: RunNo) -> Result<Option<Seq>, Error> {
        let inner = self.lock();
        let rows = inner.committed.payloads.keys().rev();
        Ok(rows.filter(|k| k.0 == run && k.2 == Role::Request).map(|k| k.1).next())
    }

    fn payload(&self, run: RunNo, seq: Seq, role: Role) -> Result<Option<Payload>, Error> {
        let inner = self.lock();
        let parts = inner.committed.payloads.range((run, seq, role, 0)..=(run, seq, role, u32::MAX));
        Ok(Payload::join(parts.map(|(_, p)| p.clone()).collect()))
    }

    fn events(&self, wanted: &EventQuery) -> Result<Vec<Event>, Error> {
        let inner = self.lock();
        let after = inner.committed.events.iter().filter(|e| e.mark > wanted.after);
        Ok(after
            .filter(|e| wanted.run.is_none_or(|run| e.run == Some(run)))
            .take(wanted.limit)
            .map(|e| Event::clone(e))
            .collect())
    }

    fn deliveries(&self) -> Result<Vec<Delivery>, Error> {
        Ok(self.lock().committed.deliveries.values().cloned().collect())
    }

    fn newest_event(&self) -> Result<Mark, Error> {
        Ok(self.lock().committed.events.last().map(|e| e.mark).unwrap_or_default())
    }

    fn live_instances(&self) -> Result<Vec<Instance>, Error> {
        let inner = self.lock();
        Ok(inner.committed.instances.values().filter(|i| i.life == Life::Live).cloned().collect())
    }

    fn instance(&self, no: InstanceNo) -> Result<Option<Instance>, Error> {
        Ok(self.lock().committed.instances.get(&no).cloned())
    }

    fn ledger(&self, since: Micros, until: Micros) -> Result<Vec<LedgerLine>, Error> {
        let mut lines: BTreeMap<(RunNo, String, String, i64), LedgerLine> = BTreeMap::new();
        for e in self.lock().committed.entries.values() {
            let Some(call) = e.call.as_ref().filter(|_| e.opened_at >= since && e.opened_at < until) else {
                continue;
            };
            let day = e.opened_at.0.div_euclid(86_400_000_000);
            let line =
                lines.entry((e.run, call.upstream.clone(), call.model.clone(), day)).or_insert(LedgerLine {
                    run: e.run,
                    upstream: call.upstream.clone(),
                    model: call.model.clone(),
                    day,
                    calls: 0,
                    tokens: 0,
                    spent_nano_usd: 0,
                    doubt_nano_usd: 0,
                    unbacked_nano_usd: 0,
                });
            line.calls += e.spent[Unit::Calls];
            line.tokens += e.spent.tokens();
            line.spent_nano_usd += e.spent.cost();
            if e.state == State::Unknown {
                line.doubt_nano_usd += e.held.cost();
            }
            line.unbacked_nano_usd += e.unbacked().cost();
        }
        Ok(lines.into_values().collect())
    }

    fn token_keys(&self) -> Result<Vec<TokenKey>, Error> {
        Ok(self.keys.clone())
    }

    fn now(&self) -> Result<Micros, Error> {
        Ok(self.clock.now())
    }

    fn place(&self) -> String {
        "memory".into()
    }
}
