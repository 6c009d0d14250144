//! A store that fails where a test says.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use outlast_core::{
    engine::op::{Op, Outcome},
    envelope::{Envelope, budget::BudgetView},
    events::{Event, EventQuery, Mark, delivery::Delivery},
    journal::{Entry, Role, job::ItemRow, payload::Payload},
    run::{attempt::Attempt, instance::Instance, status::Status, token::TokenKey},
    store::filter::ApprovalFilter,
    store::{
        Durability, Error, Hint, LedgerLine, Loss, Losses, News, Page, Promise, RunFilter, RunView, Sought,
        StepRow, Store, Ticket, state::Wraps,
    },
    words::id::{EnvelopeNo, InstanceNo, Micros, RunId, RunNo, Seq},
};

/// Fate of the operations of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    Fails(Error),
    /// The operation is committed, and its outcome is reported only once the store is mended.
    ToldLater,
    /// The operation is committed, and its outcome is not reported.
    InDoubt,
}

/// A store in front of another.
pub struct Failing {
    inner: Arc<dyn Store>,
    fates: Mutex<Vec<(&'static str, Fate)>>,
    failed: AtomicUsize,
    /// Outcomes that are still to be reported.
    later: Mutex<Vec<(Promise, Result<Outcome, Error>)>>,
    losses: Mutex<Losses>,
    hints: Mutex<Vec<Hint>>,
}

impl Failing {
    pub fn new(inner: Arc<dyn Store>) -> Arc<Failing> {
        Arc::new(Failing {
            inner,
            fates: Mutex::default(),
            failed: AtomicUsize::new(0),
            later: Mutex::default(),
            losses: Mutex::default(),
            hints: Mutex::default(),
        })
    }

    /// From now on operations named `op` have this fate.
    pub fn let_fail(&self, op: &'static str, fate: Fate) {
        self.fates.lock().unwrap().push((op, fate));
    }

    /// Commits are found to be lost.
    pub fn lose(&self, loss: Loss) {
        let mut losses = self.losses.lock().unwrap();
        losses.commits += loss.commits;
        losses.newest = Some(loss);
    }

    /// Number of listeners of hints.
    pub fn hearers(&self) -> usize {
        self.hints.lock().unwrap().len()
    }

    /// Another process gives a hint.
    pub fn hint(&self, news: News) {
        self.hints.lock().unwrap().iter().for_each(|hint| hint(news));
    }

    /// Makes the store work again.
    pub fn mend(&self) {
        self.fates.lock().unwrap().clear();
        self.tell();
    }

    /// Tells what was to be told later.
    pub fn tell(&self) {
        for (promise, outcome) in self.later.lock().unwrap().drain(..) {
            // A caller that no longer waits need not know.
            let _ = promise.send(outcome);
        }
    }

    /// Returns the number of operations that failed.
    pub fn failed(&self) -> usize {
        self.failed.load(Ordering::SeqCst)
    }

    /// Returns the number of committed operations whose outcome was not reported yet.
    pub fn untold(&self) -> usize {
        self.later.lock().unwrap().len()
    }
}

impl Store for Failing {
    fn submit(&self, op: Op, durability: Durability) -> Ticket {
        let fate = self.fates.lock().unwrap().iter().find(|f| f.0 == op.name()).map(|f| f.1.clone());
        match fate {
            None => self.inner.submit(op, durability),
            Some(Fate::Fails(e)) => {
                self.failed.fetch_add(1, Ordering::SeqCst);
                Ticket::ready(Err(e))
            }
            Some(Fate::InDoubt) => {
                let _ = self.inner.submit(op, durability).wait();
                Ticket::ready(Err(Error::CommitUnknown { why: "a test".into() }))
            }
            Some(Fate::ToldLater) => {
                let (promise, ticket) = Ticket::new();
                let outcome = self.inner.submit(op, durability).wait();
                self.later.lock().unwrap().push((promise, outcome));
                ticket
            }
        }
    }

    fn run_no(&self, id: &RunId) -> Result<Option<RunNo>, Error> {
        self.inner.run_no(id)
    }
    fn run(&self, no: RunNo) -> Result<Option<RunView>, Error> {
        self.inner.run(no)
    }
    fn runs(&self, filter: &RunFilter) -> Result<Vec<RunView>, Error> {
        self.inner.runs(filter)
    }
    fn approvals(&self, filter: &ApprovalFilter) -> Result<Vec<Entry>, Error> {
        self.inner.approvals(filter)
    }
    fn envelope(&self, no: EnvelopeNo) -> Result<Option<Envelope>, Error> {
        self.inner.envelope(no)
    }
    fn budgets(&self) -> Result<Vec<BudgetView>, Error> {
        self.inner.budgets()
    }
    fn attempts(&self, run: RunNo) -> Result<Vec<Attempt>, Error> {
        self.inner.attempts(run)
    }
    fn entry(&self, run: RunNo, seq: Seq) -> Result<Option<Entry>, Error> {
        self.inner.entry(run, seq)
    }
    fn entries(&self, run: RunNo, after: Seq, limit: usize) -> Result<Vec<Entry>, Error> {
        self.inner.entries(run, after, limit)
    }
    fn items(&self, run: RunNo, page: &Page) -> Result<Vec<(ItemRow, Option<Payload>)>, Error> {
        self.inner.items(run, page)
    }
    fn steps(&self, run: RunNo, after: Seq, limit: usize) -> Result<Vec<(StepRow, Option<Payload>)>, Error> {
        self.inner.steps(run, after, limit)
    }
    fn newest(&self, run: RunNo, sought: &Sought<'_>) -> Result<Option<Entry>, Error> {
        self.inner.newest(run, sought)
    }
    fn newest_request(&self, run: RunNo) -> Result<Option<Seq>, Error> {
        self.inner.newest_request(run)
    }
    fn payload(&self, run: RunNo, seq: Seq, role: Role) -> Result<Option<Payload>, Error> {
        self.inner.payload(run, seq, role)
    }
    fn events(&self, wanted: &EventQuery) -> Result<Vec<Event>, Error> {
        self.inner.events(wanted)
    }
    fn statuses(&self) -> Result<Vec<(Status, i64)>, Error> {
        self.inner.statuses()
    }
    fn newest_event(&self) -> Result<Mark, Error> {
        self.inner.newest_event()
    }
    fn deliveries(&self) -> Result<Vec<Delivery>, Error> {
        self.inner.deliveries()
    }
    fn live_instances(&self) -> Result<Vec<Instance>, Error> {
        self.inner.live_instances()
    }
    fn instance(&self, no: InstanceNo) -> Result<Option<Instance>, Error> {
        self.inner.instance(no)
    }
    fn ledger(&self, since: Micros, until: Micros) -> Result<Vec<LedgerLine>, Error> {
        self.inner.ledger(since, until)
    }
    fn token_keys(&self) -> Result<Vec<TokenKey>, Error> {
        self.inner.token_keys()
    }
    fn on_hint(&self, hint: Hint) {
        self.hints.lock().unwrap().push(hint);
    }
    fn losses(&self) -> Losses {
        self.losses.lock().unwrap().clone()
    }
    fn now(&self) -> Result<Micros, Error> {
        self.inner.now()
    }
    fn place(&self) -> String {
        self.inner.place()
    }
}

impl Wraps for Failing {
    fn wrapped(&self) -> &dyn Store {
        &*self.inner
    }
}
