//! A store that fails where a test says.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use outlast_core::{
    engine::op::{Op, Outcome},
    store::{Answer, Durability, Error, Hint, Loss, Losses, News, Promise, Question, Store, Ticket},
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
    /// Error of every read; `None`: they work.
    unreadable: Mutex<Option<Error>>,
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
            unreadable: Mutex::default(),
            later: Mutex::default(),
            losses: Mutex::default(),
            hints: Mutex::default(),
        })
    }

    /// From now on operations named `op` have this fate.
    pub fn let_fail(&self, op: &'static str, fate: Fate) {
        self.fates.lock().unwrap().push((op, fate));
    }

    /// From now on no read is answered.
    pub fn let_reads_fail(&self, error: Error) {
        *self.unreadable.lock().unwrap() = Some(error);
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
        *self.unreadable.lock().unwrap() = None;
        self.tell();
    }

    /// Tells what was to be told later.
    pub fn tell(&self) {
        for (promise, outcome) in self.later.lock().unwrap().drain(..) {
            // A caller that no longer waits need not know.
            let _ = promise.send(outcome);
        }
    }

    /// Returns the number of operations and reads that failed.
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

    fn on_hint(&self, hint: Hint) {
        self.hints.lock().unwrap().push(hint);
    }
    fn losses(&self) -> Losses {
        self.losses.lock().unwrap().clone()
    }

    fn answer(&self, question: &Question) -> Result<Answer, Error> {
        match self.unreadable.lock().unwrap().clone() {
            Some(error) => {
                self.failed.fetch_add(1, Ordering::SeqCst);
                Err(error)
            }
            None => self.inner.answer(question),
        }
    }
    fn place(&self) -> String {
        self.inner.place()
    }
}
