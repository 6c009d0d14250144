//! The state as the faces offer it: transactions that are open here, who writes, and what may go wrong.
//!
//! gRPC and REST only translate; what decides is the engine's `Put` and the core's `Transactions`.

mod commits;
mod error;
pub mod retention;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outlast_core::{
    engine::{
        actor::Actor,
        state::{
            put::{Change, Put},
            transaction::{self, Conflicts, Limits, Seen, Transactions},
        },
    },
    state::{Committed, Name, Position},
    store::{self, Ask as _, Durability, Store},
    words::{
        clock::{Clock, Entropy, random},
        id::{RunId, Slot, uuid_v7},
    },
};

pub use commits::{Commits, PAGE};
pub use error::{Error, Kind};

/// Values above this are compressed beside the threads that answer others.
const LARGE: usize = 64 << 10;

/// How often expired transactions are freed in a process where nothing else happens.
const TICK: std::time::Duration = std::time::Duration::from_secs(1);

/// Who writes through a face.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// Clients that name no run.
    NoRun,
    /// The open attempt of the run that is served; `None` between two attempts.
    Run(Option<(Actor, Slot)>),
}

/// A store's state with the transactions that are open in this process.
pub struct StateDesk {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    conflicts: Conflicts,
    open: Mutex<Open>,
}

struct Open {
    writer: Writer,
    transactions: Transactions,
}

impl StateDesk {
    pub fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        conflicts: Conflicts,
        writer: Writer,
    ) -> Arc<StateDesk> {
        let open = Mutex::new(Open { writer, transactions: Transactions::new(Limits::default()) });
        Arc::new(StateDesk { store, clock, entropy, conflicts, open })
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// An id for a run that nobody named: never used twice.
    pub fn name_a_run(&self) -> RunId {
        RunId::generate(self.clock.now(), random(&*self.entropy))
    }

    /// The attempt that writes from now on. What an earlier one left open is aborted: it may not be
    /// committed in the name of another.
    pub fn drive(&self, writer: Option<(Actor, Slot)>) {
        let mut open = self.open();
        *open = Open { writer: Writer::Run(writer), transactions: Transactions::new(Limits::default()) };
    }

    /// Begins a transaction, and returns its id: never used twice.
    ///
    /// `reads`: it will read what stood when it began.
    /// Errors: too many are open; no attempt may write now.
    pub async fn begin(&self, timeout_ms: Option<u64>, reads: bool) -> Result<String, Error> {
        let snapshot = match self.conflicts {
            Conflicts::Expected if !reads => Position::default(),
            _ => self.read(|s| s.state_position()).await?,
        };
        let id = format!("txn_{}", uuid_v7(self.clock.now(), random(&*self.entropy)));
        let now = self.clock.monotonic_ms();
        let mut open = self.open();
        open.writer.actor()?;
        open.transactions.begin(&id, timeout_ms, snapshot, now)?;
        Ok(id)
    }

    /// Adds a change to an open transaction. Touches no store.
    pub fn change(&self, id: &str, change: Change) -> Result<(), Error> {
        let now = self.clock.monotonic_ms();
        Ok(self.open().transactions.change(id, change, now)?)
    }

    /// What an open transaction sees of a key.
    pub fn see(&self, id: &str, name: &Name) -> Result<Seen, Error> {
        let now = self.clock.monotonic_ms();
        Ok(self.open().transactions.see(id, name, now)?)
    }

    /// Commits all of a transaction or nothing. On disk before it returns.
    ///
    /// Idempotent: one that was committed already answers what it came to. An empty one is no commit
    /// and has the number 0.
    pub async fn commit(&self, id: &str) -> Result<Committed, Error> {
        let now = self.clock.monotonic_ms();
        let (ended, alone) = {
            let mut open = self.open();
            let ended = match open.transactions.commit(id, self.conflicts, now) {
                Ok(put) => Ok(Put { actor: open.writer.actor()?, ..put }),
                Err(e) => Err(e),
            };
            (ended, open.transactions.held().0 == 0)
        };
        match ended {
            Ok(put) if put.changes.is_empty() => {
                Ok(Committed { commit: 0, at: self.clock.now(), versions: Vec::new() })
            }
            // The only transaction: its own thread does the store's work, for nobody could share the commit.
            Ok(put) if alone => Ok(self.store.ask_here(put, Durability::Synced).await?),
            Ok(put) => Ok(self.store.ask(put, Durability::Synced).await?),
            Err(transaction::Error::NotFound { .. }) => {
                let asked = id.to_owned();
                let outcome = self.read(move |s| s.transaction_outcome(&asked)).await?;
                outcome.ok_or_else(|| self.unknown(id))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Ends a transaction without a commit. What is not open is ended already.
    pub fn abort(&self, id: &str) {
        self.open().transactions.abort(id);
    }

    /// Applies changes at once, all or none, in the name of `writer`. On disk before it returns.
    ///
    /// Idempotent on `transaction`, the caller's own name of it.
    pub async fn put(
        &self,
        writer: Writer,
        changes: Vec<Change>,
        transaction: Option<Arc<str>>,
    ) -> Result<Committed, Error> {
        let actor = writer.actor()?;
        Ok(self.store.ask(Put { actor, changes, transaction }, Durability::Synced).await?)
    }

    /// What is said of a transaction that is neither open here nor recorded.
    pub fn unknown(&self, id: &str) -> Error {
        transaction::unknown(id, self.clock.now()).into()
    }

    /// Prepares a value. A large one beside the threads that answer others.
    pub async fn set(&self, name: Arc<Name>, value: Vec<u8>) -> Change {
        if value.len() <= LARGE {
            return Change::set(name, &value);
        }
        let prepared = tokio::task::spawn_blocking(move || Change::set(name, &value)).await;
        match prepared {
            Ok(change) => change,
            Err(e) => std::panic::resume_unwind(e.into_panic()),
        }
    }

    /// Reads beside the threads that answer others: a store's reads block.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&dyn Store) -> Result<T, store::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let store = self.store.clone();
        let read = tokio::task::spawn_blocking(move || look(&*store)).await;
        Ok(read.map_err(|_| store::Error::Closed)??)
    }

    /// Frees what expired, until the runtime ends.
    pub async fn keep_expiring(self: Arc<Self>) {
        loop {
            tokio::time::sleep(TICK).await;
            let now = self.clock.monotonic_ms();
            self.open().transactions.expire(now);
        }
    }

    /// How many transactions are open, and the bytes they hold.
    pub fn held(&self) -> (usize, usize) {
        self.open().transactions.held()
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    /// In whose name a change is written.
    pub fn actor(self) -> Result<Option<(Actor, Slot)>, Error> {
        match self {
            Writer::NoRun => Ok(None),
            Writer::Run(Some(actor)) => Ok(Some(actor)),
            Writer::Run(None) => Err(Error::NoAttempt),
        }
    }
}
