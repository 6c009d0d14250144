//! The store trait: submits operations and answers questions about what is committed. Each database implements it.

mod error;
pub mod filter;
mod hint;
pub mod load;
pub mod objects;
mod question;
pub mod state;

use std::{
    collections::BTreeMap,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use serde::{Deserialize, Serialize, Serializer};

use crate::{
    engine::{self, Op, Outcome, Verb},
    envelope::{BudgetView, Envelope},
    events::{Event, EventQuery, Mark, delivery::Delivery},
    journal::{Entry, ItemRow, Payload, Role, State, payload::PART_LEN},
    run::{Attempt, Instance, Run, Spec, Status, TokenKey},
    state::{Committed, Item, Listed, Namespace, Position, ResumePoint},
    store::{
        filter::After,
        state::{EventPage, EventRange, History, Scan},
    },
    words::{EnvelopeNo, InstanceNo, Micros, RunId, RunNo, Seq},
};

pub use crate::journal::LedgerLine;
pub use error::Error;
pub use filter::{ApprovalFilter, Page, Sought, Which};
pub use hint::{Hint, Loss, Losses, News};
pub use objects::SharedObjects;
pub use question::{Answer, Question};
use question::{ask_each, questions};

/// Durability an operation must reach before its ticket resolves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// No ticket waits for the operation: it is written with the next commit. Used only for delivery marks.
    Lazy,
    /// The operation is committed: it survives `kill -9`, and reaches the disk with the next synced group.
    Committed,
    /// The operation is on disk: it survives a loss of power.
    Synced,
}

/// Run with its spec and envelope, as committed.
///
/// As text, for the commands of another machine, it lacks values that only the next start of the run's command needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunView {
    pub run: Run,
    #[serde(serialize_with = "without_values")]
    pub spec: Spec,
    /// The run's own envelope, without its ancestors'.
    pub envelope: Envelope,
}

/// Writes a spec without its environment, price file and upstreams: no command prints them.
fn without_values<S: Serializer>(spec: &Spec, to: S) -> Result<S::Ok, S::Error> {
    let mut spec = Spec { upstreams: BTreeMap::new(), ..spec.clone() };
    spec.command.iter_mut().for_each(|command| command.env.clear());
    spec.prices.iter_mut().filter_map(|prices| prices.file.as_mut()).for_each(|file| file.text.clear());
    spec.serialize(to)
}

/// Filter for listing runs, newest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunFilter {
    pub status: Option<Status>,
    pub command_key: Option<String>,
    /// Restricts to batch jobs. Uses an index.
    pub jobs: bool,
    /// Restricts to runs that may be meant by this word: its name begins with it, or its id contains it. A store may let
    /// others through, so that a caller looks again; what it leaves out costs it no row.
    #[serde(default)]
    pub word: Option<String>,
    /// Restricts to runs with a smaller number, for the next page.
    pub before: Option<RunNo>,
    pub limit: usize,
}

impl RunFilter {
    /// Builds the filter for all runs that may be meant by `word`.
    pub fn of_word(word: &str) -> RunFilter {
        RunFilter { word: Some(word.to_owned()), ..RunFilter::default() }
    }
}

/// Largest stored size, in bytes, of a step's result that is returned with the step.
pub const INLINE_VALUE: i64 = 16 << 10;

/// Largest stored size, in bytes, of an item's result that is returned with the item: less than one part.
pub const WHOLE_VALUE: i64 = PART_LEN as i64 - 1;

/// Part of a step's entry that a resume reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRow {
    pub seq: Seq,
    pub scope: Arc<str>,
    pub key: String,
    pub state: State,
    pub closed_at: Option<Micros>,
}

/// Store in one of the databases: `submit` is the only way to write, `answer` the only way to read.
pub trait Store: Send + Sync {
    /// Queues an operation. The store decides it inside the transaction that writes it, and commits all queued
    /// operations as one group. The ticket resolves when `durability` is reached.
    fn submit(&self, op: Op, durability: Durability) -> Ticket;

    /// Submits an operation for a caller that would only wait. If no other thread is writing, the caller's thread does
    /// the work before this returns, which saves two wake-ups. Blocks for as long as a commit takes.
    fn submit_here(&self, op: Op, durability: Durability) -> Ticket {
        self.submit(op, durability)
    }

    /// Decides `op` on the committed rows and returns the outcome before `op` is written. The next commit writes `op`,
    /// or one of its own within 100 ms. Only for an opening whose loss makes it look unstarted: `kill -9` before the
    /// write loses it.
    ///
    /// The outcome assumes that no other process writes to the run first. If one does, `op` is decided again and may
    /// come out differently. Returns `op` as the error when a write is in progress: submit it then.
    fn ahead(&self, op: Op) -> Result<Result<Outcome, Error>, Op> {
        Err(op)
    }

    /// Answers a question from what is committed. Callers ask by the methods below.
    fn answer(&self, question: &Question) -> Result<Answer, Error>;

    questions!(ask_each);

    /// Returns the store that this one stands in front of; `None` for a store with rows of its own. The methods below are
    /// the store within's, where a store in front has none of its own.
    fn within(&self) -> Option<&dyn Store> {
        None
    }

    /// Lists the damage that the database itself finds, one line each. Reads everything. With `reindex`, rebuilds the
    /// indexes first; no row is changed.
    fn damage(&self, reindex: bool) -> Result<Vec<String>, Error> {
        self.within().map_or(Ok(Vec::new()), |store| store.damage(reindex))
    }
    /// Checks, without a transaction, that the store is still at its place and may be used in this process.
    ///
    /// Errors: `Vanished`, `OpenAtFork`.
    fn check(&self) -> Result<(), Error> {
        self.within().map_or(Ok(()), |store| store.check())
    }
    /// Returns the commits of this process that the database was found to have lost.
    fn losses(&self) -> Losses {
        self.within().map_or_else(Losses::default, |store| store.losses())
    }
    /// Registers `hint`, which is called with what another process may have done. A call is only a hint: it may be
    /// missing, or come without a reason. `hint` is called on a thread of the store's, and must not block.
    fn on_hint(&self, hint: Hint) {
        if let Some(store) = self.within() {
            store.on_hint(hint);
        }
    }
    /// Returns the store's location, for messages. Contains no password.
    fn place(&self) -> String;
    /// Returns whether processes on other machines may use the store.
    fn is_shared(&self) -> bool {
        self.within().is_some_and(|store| store.is_shared())
    }
    /// Returns the place of the objects that machines share through this store; `None`: it has none.
    fn objects(&self) -> Option<&dyn SharedObjects> {
        self.within()?.objects()
    }
    /// Returns whether the store is behind another machine's server: its runs' processes, logs and directories are there.
    fn is_remote(&self) -> bool {
        self.within().is_some_and(|store| store.is_remote())
    }
}

/// Submits a verb and returns its typed answer.
pub trait Ask {
    fn ask<V: Verb>(&self, verb: V, durability: Durability) -> Pending<V>;
    /// Works as `ask`, through `Store::submit_here`.
    fn ask_here<V: Verb>(&self, verb: V, durability: Durability) -> Pending<V>;
    /// Submits a verb and blocks until its answer is there. Not for async code.
    fn run_verb<V: Verb>(&self, verb: V, durability: Durability) -> Result<V::Answer, Error> {
        self.ask_here(verb, durability).wait()
    }
}

impl<S: Store + ?Sized> Ask for S {
    fn ask<V: Verb>(&self, verb: V, durability: Durability) -> Pending<V> {
        Pending { ticket: self.submit(verb.into(), durability), verb: PhantomData }
    }

    fn ask_here<V: Verb>(&self, verb: V, durability: Durability) -> Pending<V> {
        Pending { ticket: self.submit_here(verb.into(), durability), verb: PhantomData }
    }
}

/// Future outcome of an operation: await it, or block on `wait`.
pub struct Ticket(Inner);

enum Inner {
    Ready(Option<Result<Outcome, Error>>),
    Later(oneshot::AsyncReceiver<Result<Outcome, Error>>),
}

/// Sender with which a store's writer resolves a ticket.
pub type Promise = oneshot::Sender<Result<Outcome, Error>>;

impl Ticket {
    /// Creates a ticket and the promise that resolves it. A dropped promise resolves the ticket as `Closed`.
    pub fn new() -> (Promise, Ticket) {
        let (tx, rx) = oneshot::async_channel();
        (tx, Ticket(Inner::Later(rx)))
    }

    pub fn ready(outcome: Result<Outcome, Error>) -> Ticket {
        Ticket(Inner::Ready(Some(outcome)))
    }

    /// Blocks until the ticket resolves. Not for async code.
    pub fn wait(self) -> Result<Outcome, Error> {
        match self.0 {
            Inner::Ready(r) => r.unwrap_or(Err(Error::Closed)),
            Inner::Later(rx) => futures_executor::block_on(rx).unwrap_or(Err(Error::Closed)),
        }
    }
}

impl Future for Ticket {
    type Output = Result<Outcome, Error>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Ready(r) => Poll::Ready(r.take().unwrap_or(Err(Error::Closed))),
            Inner::Later(rx) => Pin::new(rx).poll(cx).map(|r| r.unwrap_or(Err(Error::Closed))),
        }
    }
}

/// Ticket typed by its verb, which resolves to the verb's answer.
pub struct Pending<V> {
    ticket: Ticket,
    verb: PhantomData<fn() -> V>,
}

impl<V: Verb> Pending<V> {
    /// Blocks until the ticket resolves. Not for async code.
    pub fn wait(self) -> Result<V::Answer, Error> {
        typed::<V>(self.ticket.wait())
    }
}

impl<V: Verb> Future for Pending<V> {
    type Output = Result<V::Answer, Error>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.ticket).poll(cx).map(typed::<V>)
    }
}

fn typed<V: Verb>(outcome: Result<Outcome, Error>) -> Result<V::Answer, Error> {
    V::answer(outcome?).ok_or(Error::Engine(engine::Error::NotLoaded("another verb's outcome")))
}
