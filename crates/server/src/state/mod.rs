//! The state behind gRPC and REST: transactions open in this process, the writer of a change, and the errors.
//!
//! gRPC and REST only translate; the engine's `Put` and the core's `Transactions` decide.
//!
//! History of an agent's keys, commit by commit: pages of events grouped into whole commits.

mod error;
pub mod retention;

use std::{net::SocketAddr, sync::Arc};

use outlast_core::{
    engine::{
        Actor, Change, Put,
        state::transaction::{self, Conflicts, Limits, Seen, Transactions},
    },
    state::{Committed, Name, Position},
    store::{
        self, Ask as _, Durability, News, Store,
        state::{Event, EventRange},
    },
    words::{Clock, Entropy, RunId, Slot, clock::random, id::uuid_v7},
};
use parking_lot::Mutex;

use crate::{
    hints::{Ear, Hints},
    node::Node,
    wire::tokens::ApiTokens,
};

pub use error::Error;

/// Bytes above which a value is compressed on a blocking thread, so that other requests do not wait.
const LARGE: usize = 64 << 10;

/// Interval at which expired transactions are freed when nothing else happens in the process.
const TICK: std::time::Duration = std::time::Duration::from_secs(1);

/// Run and attempt in whose name a change to the state is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// No run: the client named none.
    NoRun,
    /// Open attempt of the run that a supervisor serves; `None` between two attempts, when nothing may be written.
    Run(Option<(Actor, Slot)>),
}

/// Callers that may call the state's service over gRPC.
pub enum Admission {
    /// Everybody who reaches the listener, which has to be on loopback: who serves it ensures that.
    Everybody,
    /// Callers that show one of these tokens.
    ApiToken(ApiTokens),
    /// Callers that the function lets in.
    By(Box<LetsIn>),
}

/// Decides on a caller by the token that it shows (empty for none) and the address that it calls from.
pub type LetsIn = dyn Fn(&str, Option<SocketAddr>) -> bool + Send + Sync;

/// Access to the state of a store, with the transactions that are open in this process.
pub struct StateDesk {
    store: Arc<dyn Store>,
    hints: Arc<Hints>,
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
    /// Creates the desk of a process. Its clock and store are the node's.
    pub fn new(
        node: &Node,
        entropy: Arc<dyn Entropy>,
        conflicts: Conflicts,
        writer: Writer,
    ) -> Arc<StateDesk> {
        let open = Mutex::new(Open { writer, transactions: Transactions::new(Limits::default()) });
        let (store, clock, hints) = (node.store().clone(), node.clock().clone(), node.hints().clone());
        Arc::new(StateDesk { store, hints, clock, entropy, conflicts, open })
    }

    /// Returns an ear for commits of other processes.
    pub fn ear(&self) -> Ear {
        self.hints.ear(News::STATE)
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Generates an id for a run without a name. No id is used twice.
    pub fn name_a_run(&self) -> RunId {
        RunId::generate(self.clock.now(), random(&*self.entropy))
    }

    /// Sets the attempt in whose name changes are written from now on; `None`: no writes are accepted. Open
    /// transactions are aborted, because they must not be committed in the name of another attempt.
    pub fn drive(&self, writer: Option<(Actor, Slot)>) {
        let mut open = self.open.lock();
        *open = Open { writer: Writer::Run(writer), transactions: Transactions::new(Limits::default()) };
    }

    /// Begins a transaction and returns its id. No id is used twice.
    ///
    /// `reads`: the transaction will read, and sees the state as of its beginning. `timeout_ms`: time after which it is
    /// aborted; `None`: the default. Errors: too many are open; no attempt may write now.
    pub async fn begin(&self, timeout_ms: Option<u64>, reads: bool) -> Result<String, Error> {
        let snapshot = match self.conflicts {
            Conflicts::Expected if !reads => Position::default(),
            _ => self.read(|s| s.state_position()).await?,
        };
        self.open.lock().writer.actor()?;
        Ok(self.begin_at(snapshot, timeout_ms)?)
    }

    /// Begins a transaction that reads at `snapshot`: see [`StateDesk::begin`].
    pub fn begin_at(
        &self,
        snapshot: Position,
        timeout_ms: Option<u64>,
    ) -> Result<String, transaction::Error> {
        let id = format!("txn_{}", uuid_v7(self.clock.now(), random(&*self.entropy)));
        self.with(|all, now| all.begin(&id, timeout_ms, snapshot, now))?;
        Ok(id)
    }

    /// Does something with the open transactions, at the time of the process's clock.
    pub fn with<T>(
        &self,
        act: impl FnOnce(&mut Transactions, u64) -> Result<T, transaction::Error>,
    ) -> Result<T, transaction::Error> {
        let now = self.clock.monotonic_ms();
        act(&mut self.open.lock().transactions, now)
    }

    /// Adds a change to an open transaction. Nothing is written to the store before `commit`.
    pub fn change(&self, id: &str, change: Change) -> Result<(), Error> {
        Ok(self.with(|all, now| all.change(id, change, now))?)
    }

    /// Returns the value of a key as an open transaction sees it.
    pub fn see(&self, id: &str, name: &Name) -> Result<Seen, Error> {
        Ok(self.with(|all, now| all.see(id, name, now))?)
    }

    /// Commits a transaction, all of it or nothing. Durable before it returns.
    ///
    /// Idempotent: a transaction that was committed already returns its recorded outcome. An empty transaction makes no
    /// commit and returns the number 0.
    pub async fn commit(&self, id: &str) -> Result<Committed, Error> {
        let now = self.clock.monotonic_ms();
        let (ended, alone) = {
            let mut open = self.open.lock();
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
            // The only open transaction: no other could share the commit, so this thread does the store's work itself.
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

    /// Aborts a transaction. Does nothing if it is not open.
    pub fn abort(&self, id: &str) {
        self.open.lock().transactions.abort(id);
    }

    /// Applies changes in one commit, all or none, in the name of `writer`. Durable before it returns.
    ///
    /// Idempotent on `transaction`, the caller's own id for the commit; without one, each call is a commit.
    pub async fn put(
        &self,
        writer: Writer,
        changes: Vec<Change>,
        transaction: Option<Arc<str>>,
    ) -> Result<Committed, Error> {
        let actor = writer.actor()?;
        Ok(self.store.ask(Put { actor, changes, transaction }, Durability::Synced).await?)
    }

    /// Returns the error of a transaction that is neither open here nor recorded.
    pub fn unknown(&self, id: &str) -> Error {
        transaction::unknown(id, self.clock.now()).into()
    }

    /// Returns the change that sets `name` to `value`. Values above `LARGE` bytes are compressed on a blocking thread.
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

    /// Reads the store as [`read`] does.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&dyn Store) -> Result<T, store::Error> + Send + 'static,
    ) -> Result<T, Error> {
        Ok(read(&self.store, look).await?)
    }

    /// Aborts expired transactions and frees their memory, without end.
    pub async fn keep_expiring(self: Arc<Self>) {
        loop {
            tokio::time::sleep(TICK).await;
            let now = self.clock.monotonic_ms();
            self.open.lock().transactions.expire(now);
        }
    }

    /// Returns the number of open transactions, and the bytes that they hold in memory.
    pub fn held(&self) -> (usize, usize) {
        self.open.lock().transactions.held()
    }
}

/// Runs `look` on a blocking thread, because a store's reads block.
pub async fn read<T: Send + 'static>(
    store: &Arc<dyn Store>,
    look: impl FnOnce(&dyn Store) -> Result<T, store::Error> + Send + 'static,
) -> Result<T, store::Error> {
    let (store, result) = (store.clone(), Arc::new(Mutex::new(None)));
    let kept = Arc::clone(&result);
    // Of one type, so that a task is compiled once and not for each read.
    let work: Box<dyn FnOnce() + Send> = Box::new(move || *kept.lock() = Some(look(&*store)));
    tokio::task::spawn_blocking(work).await.map_err(|_| store::Error::Closed)?;
    let read = result.lock().take();
    read.ok_or(store::Error::Closed)?
}

impl Writer {
    /// Returns the attempt in whose name a change is written; `None`: in the name of no run.
    ///
    /// Errors: `no_attempt` between two attempts of the run.
    pub fn actor(self) -> Result<Option<(Actor, Slot)>, Error> {
        match self {
            Writer::NoRun => Ok(None),
            Writer::Run(Some(actor)) => Ok(Some(actor)),
            Writer::Run(None) => Err(Error::NoAttempt),
        }
    }
}

/// Number of events read at once, as a compromise between few reads and little memory.
pub const PAGE: usize = 512;

/// Reader of the commits of a range, in order. To follow new commits, call [`Commits::page`] again after the last one.
#[derive(Debug)]
pub struct Commits {
    range: EventRange,
    /// Events read so far of a commit that may continue on the next page.
    begun: Vec<Event>,
    compacted: bool,
}

impl Commits {
    /// Makes a reader of the commits of `range`. `range.limit` is the number of events read at once.
    pub fn new(range: EventRange) -> Commits {
        Commits { range, begun: Vec::new(), compacted: false }
    }

    /// Returns the next commits, each with all its events that concern this agent; empty if there are no newer commits
    /// yet.
    pub fn page<S: Store + ?Sized>(&mut self, store: &S) -> Result<Vec<Vec<Event>>, store::Error> {
        let mut whole = Vec::new();
        loop {
            let page = store.state_events(&self.range)?;
            self.compacted |= page.compacted;
            let is_last = page.events.len() < self.range.limit;
            for event in page.events {
                self.range.after = event.item.position;
                if self.begun.last().is_some_and(|before| before.item.commit != event.item.commit) {
                    whole.push(std::mem::take(&mut self.begun));
                }
                self.begun.push(event);
            }
            // A read sees one moment, so the last commit of the last page is complete.
            if is_last && !self.begun.is_empty() {
                whole.push(std::mem::take(&mut self.begun));
            }
            if is_last || !whole.is_empty() {
                return Ok(whole);
            }
        }
    }

    /// Returns whether compaction has removed versions from the range that was read so far.
    pub fn compacted(&self) -> bool {
        self.compacted
    }
}
