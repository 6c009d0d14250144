//! A store with the processes and runs of one story on it.

use std::{cell::RefCell, sync::Arc};

use outlast_core::{
    engine::{
        op::Verb,
        run::{
            process::{Active, DeclareDead, Pulse, Register, Renew, Swept},
            start::Start,
        },
    },
    envelope::{
        Envelope,
        audit::{Gone, Sums},
        budget::BudgetView,
        unit::Unit,
    },
    journal::{Entry, LedgerLine},
    run::{Admission, InDoubt, OnDivergence, Own, Run, Unpriced, instance::Identity, status::Status},
    store::{Ask, Durability, Error, RunFilter, RunView, Store, state::EventRange},
    words::id::{InstanceNo, Micros, RunId, RunNo, Seq},
};

use crate::bed::Bed;

/// One story's store.
pub struct Stage {
    bed: Box<dyn Bed>,
    store: RefCell<Arc<dyn Store>>,
}

impl Stage {
    /// Plays `story` on `bed`, and checks the accounts after it.
    pub fn play(bed: impl Bed + 'static, story: fn(&Stage)) {
        let stage = Stage::on(bed);
        story(&stage);
        audit(&*stage.store());
    }

    /// An empty stage on `bed`.
    pub fn on(bed: impl Bed + 'static) -> Stage {
        let store = RefCell::new(bed.open());
        Stage { bed: Box::new(bed), store }
    }

    pub fn store(&self) -> Arc<dyn Store> {
        self.store.borrow().clone()
    }

    /// Opens the store anew. Processes registered before keep their rows, and are gone.
    pub fn reopen(&self) {
        let before = self.store();
        *self.store.borrow_mut() = self.bed.reopen(before);
    }

    /// Time passes, where it does not by itself.
    pub fn wait_a_moment(&self) {
        if let Some(clock) = self.bed.clock() {
            clock.advance_ms(1);
        }
    }

    /// Lets time pass. Only for stories listed as timed.
    pub fn advance_ms(&self, ms: u64) {
        self.bed.clock().expect("a timed story needs an injected clock").advance_ms(ms);
    }

    /// Sets the wall clock, as an administrator would. Only for stories listed as timed.
    pub fn set_clock(&self, now: Micros) {
        self.bed.clock().expect("a timed story needs an injected clock").set(now);
    }

    /// A process enters the store.
    pub fn process(&self, program: &str) -> Process {
        let identity = Identity { program: program.into(), pid: 42, ..Identity::default() };
        let no = self.ask(Register { identity }).unwrap();
        Process { store: self.store(), no }
    }

    /// A run to be created: without limits, under the default policy.
    pub fn run(&self, id: &str) -> NewRun {
        NewRun { store: self.store(), start: Start::new(RunId::new(id).unwrap()) }
    }

    pub fn ask<V: Verb>(&self, verb: V) -> Result<V::Answer, Error> {
        self.store().ask(verb, Durability::Synced).wait()
    }

    /// The verb is refused with this code, and the store is as it was.
    #[track_caller]
    pub fn refuses<V: Verb>(&self, code: &str, verb: V)
    where
        V::Answer: std::fmt::Debug,
    {
        let before = everything(&*self.store());
        let error = self.ask(verb).expect_err("wanted an error");
        assert_eq!(error.code(), code, "{error}");
        assert_eq!(everything(&*self.store()), before, "{code} wrote something");
    }

    pub fn view(&self, run: RunNo) -> RunView {
        self.store().run(run).unwrap().unwrap()
    }

    pub fn row(&self, run: RunNo) -> Run {
        self.view(run).run
    }

    pub fn status(&self, run: RunNo) -> Status {
        self.row(run).status
    }

    /// The code of what halted the run.
    pub fn halt(&self, run: RunNo) -> Option<String> {
        self.row(run).halt.map(|h| h.code)
    }

    pub fn envelope(&self, run: RunNo) -> Envelope {
        self.view(run).envelope
    }

    pub fn entry(&self, run: RunNo, seq: Seq) -> Entry {
        self.store().entry(run, seq).unwrap().unwrap()
    }

    /// Every entry of the run.
    pub fn journal(&self, run: RunNo) -> Vec<Entry> {
        self.store().entries(run, Seq(0), usize::MAX >> 1).unwrap()
    }

    /// (reserved, of that in doubt, spent) in nano-USD.
    pub fn money(&self, run: RunNo) -> (i64, i64, i64) {
        let e = self.envelope(run);
        (e.reserved.cost(), e.doubt.cost(), e.spent.cost())
    }

    pub fn spent(&self, run: RunNo, unit: Unit) -> i64 {
        self.envelope(run).spent[unit]
    }
}

/// A run before it is created.
pub struct NewRun {
    store: Arc<dyn Store>,
    pub start: Start,
}

impl NewRun {
    pub fn limit(mut self, unit: Unit, limit: i64) -> Self {
        self.start.limits[unit] = Some(limit);
        self
    }

    /// A limit in nano-USD.
    pub fn cost(self, limit: i64) -> Self {
        self.limit(Unit::CostNanoUsd, limit)
    }

    pub fn under(mut self, parent: RunNo) -> Self {
        self.start.parent = Some(parent);
        self
    }

    pub fn tag(mut self, key: &str, value: &str) -> Self {
        self.start.spec.tags.insert(key.into(), value.into());
        self
    }

    pub fn in_doubt(mut self, policy: InDoubt) -> Self {
        self.start.policy.in_doubt = policy;
        self
    }

    pub fn observe(mut self) -> Self {
        self.start.policy.admission = Admission::Observe;
        self
    }

    pub fn halts_on_divergence(mut self) -> Self {
        self.start.policy.on_divergence = OnDivergence::Halt;
        self
    }

    pub fn unpriced(mut self, policy: Unpriced) -> Self {
        self.start.policy.unpriced = policy;
        self
    }

    pub fn create(self) -> RunNo {
        self.store.ask(self.start, Durability::Synced).wait().unwrap().run
    }
}

/// A process on the store.
#[derive(Clone)]
pub struct Process {
    pub store: Arc<dyn Store>,
    pub no: InstanceNo,
}

impl Process {
    /// Declares the process dead, as if its heartbeat had stood still.
    pub fn dies(&self) -> Swept {
        let heartbeat_seen = self.store.instance(self.no).unwrap().unwrap().heartbeat;
        self.ask(DeclareDead { instance: self.no, heartbeat_seen, left: false, heir: None }).unwrap()
    }

    pub fn leaves(&self) -> Swept {
        let heartbeat_seen = self.store.instance(self.no).unwrap().unwrap().heartbeat;
        self.ask(DeclareDead { instance: self.no, heartbeat_seen, left: true, heir: None }).unwrap()
    }

    pub fn renews(&self, active: Vec<Active>) -> Vec<Pulse> {
        self.ask(self.renewal(active)).unwrap()
    }

    /// The process's next renewal, if nobody else renews under its number.
    pub fn renewal(&self, active: Vec<Active>) -> Renew {
        let heartbeat = self.store.instance(self.no).unwrap().map_or(0, |row| row.heartbeat);
        Renew { instance: self.no, own: vec![heartbeat], next: heartbeat + 1, since_own_ms: None, active }
    }

    pub fn ask<V: Verb>(&self, verb: V) -> Result<V::Answer, Error> {
        self.store.ask(verb, Durability::Synced).wait()
    }
}

/// All that is committed, as far as reads show it.
pub fn everything(store: &dyn Store) -> String {
    let mut out = format!("{:?}\n", store.live_instances().unwrap());
    for view in all_runs(store) {
        let no = view.run.no;
        let attempts = store.attempts(no).unwrap();
        let entries = store.entries(no, Seq(0), usize::MAX >> 1).unwrap();
        out.push_str(&format!("{view:?}\n{attempts:?}\n{entries:?}\n"));
    }
    for namespace in store.namespaces(None, 1000).unwrap() {
        out.push_str(&format!("{namespace:?}\n"));
        for agent in store.agents(&namespace.name, None, 1000).unwrap() {
            let namespace = namespace.name.clone();
            let range = EventRange { namespace, agent, limit: 10_000, ..EventRange::default() };
            out.push_str(&format!("{:?}\n", store.state_events(&range).unwrap()));
        }
    }
    out
}

fn all_runs(store: &dyn Store) -> Vec<RunView> {
    store.runs(&RunFilter { limit: 10_000, ..RunFilter::default() }).unwrap()
}

/// Every envelope's sums are those of its runs' entries, and no limit is passed but by a recorded
/// overrun, or by what `admission = "observe"` accepts.
pub fn audit(store: &dyn Store) {
    let views = all_runs(store);
    let mut gone = Gone::default();
    for owner in &views {
        let charged = || views.iter().filter(|v| v.run.charges.contains(&owner.envelope.no));
        let observed = charged().any(|v| v.run.policy.admission == Admission::Observe);
        let calls = charged().flat_map(|v| calls(store, v.run.no));
        check(&owner.run.id.to_string(), &owner.envelope, calls, gone.child_of(&owner.run), observed);
        let own = Own::sum(&self::calls(store, owner.run.no));
        assert_eq!(owner.run.own, own, "the own calls of {}", owner.run.id);
        let lines = LedgerLine::sum(self::calls(store, owner.run.no).iter().filter_map(LedgerLine::of));
        assert_eq!(store.sums(owner.run.no).unwrap(), lines, "the ledger of {}", owner.run.id);
    }
    // The same of the newest window of each named budget.
    for BudgetView { budget, envelope } in store.budgets().unwrap() {
        let Some(e) = envelope else { continue };
        assert_eq!(Some(e.no), budget.window.map(|w| w.envelope));
        let all = views.iter().flat_map(|v| calls(store, v.run.no));
        let calls = all.filter(|entry| entry.windows().contains(&e.no));
        check(&budget.name.to_string(), &e, calls, gone.any(), false);
    }
}

fn calls(store: &dyn Store, run: RunNo) -> Vec<Entry> {
    store.entries(run, Seq(0), usize::MAX >> 1).unwrap()
}

fn check(whose: &str, e: &Envelope, calls: impl Iterator<Item = Entry>, forgotten: bool, observed: bool) {
    let mut sums = Sums::default();
    calls.for_each(|entry| sums.add(&entry));
    assert_eq!(sums.differ(e, forgotten), None, "{whose}");
    assert_eq!(sums.passed(e).filter(|_| !observed && !forgotten), None, "{whose}: {e:?}");
}

/// A moment after everything.
pub const FOREVER: Micros = Micros(i64::MAX);
