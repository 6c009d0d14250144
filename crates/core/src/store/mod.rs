//! The store's trait: submit operations, read what is committed. One trait, several databases.

mod durability;
mod error;
pub mod filter;
pub mod load;
pub mod state;

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use crate::{
    engine::{
        self,
        op::{Op, Outcome, Verb},
    },
    envelope::{Envelope, budget::BudgetView},
    journal::{
        Entry, Role, State,
        job::ItemRow,
        payload::{PART_LEN, Payload},
    },
    run::{Run, Spec, attempt::Attempt, instance::Instance, status::Status, token::TokenKey},
    store::filter::ApprovalFilter,
    store::state::Reads,
    words::id::{EnvelopeNo, InstanceNo, Micros, RunId, RunNo, Seq},
};

pub use durability::Durability;
pub use error::Error;
pub use filter::{Page, Sought, Which};

/// A run with what belongs to it, as committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunView {
    pub run: Run,
    pub spec: Spec,
    /// Its own envelope.
    pub envelope: Envelope,
}

/// Which runs to list. Newest first.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    pub status: Option<Status>,
    pub command_key: Option<String>,
    /// Only batch jobs. Found by an index.
    pub jobs: bool,
    /// Only runs with a smaller number: the page after the last one seen.
    pub before: Option<RunNo>,
    pub limit: usize,
}

/// One line of the ledger: what the calls of a run, an upstream, a model and a UTC day came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerLine {
    pub run: RunNo,
    pub upstream: String,
    pub model: String,
    /// Days since the Unix epoch, UTC, of when the call was opened.
    pub day: i64,
    pub calls: i64,
    pub tokens: i64,
    pub spent_nano_usd: i64,
    /// Held by calls whose outcome is unknown.
    pub doubt_nano_usd: i64,
}

/// Stored bytes up to which a step's result comes with the step.
pub const INLINE_VALUE: i64 = 16 << 10;

/// Stored bytes up to which an item's result comes with the item: in one part.
pub const WHOLE_VALUE: i64 = PART_LEN as i64 - 1;

/// A step as a resume needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRow {
    pub seq: Seq,
    pub scope: Arc<str>,
    pub key: String,
    pub state: State,
    pub closed_at: Option<Micros>,
}

/// What every database offers. `submit` is the one way to write.
pub trait Store: Reads + Send + Sync {
    /// Queues an operation. It is decided inside the transaction that writes it; whatever is queued
    /// commits as one group. The ticket resolves when `durability` is reached.
    fn submit(&self, op: Op, durability: Durability) -> Ticket;

    /// `submit`, by a caller who would only wait: where nobody else is at work, its own thread does the work
    /// before this returns, which saves two wake-ups. It blocks for as long as a commit takes.
    fn submit_here(&self, op: Op, durability: Durability) -> Ticket {
        self.submit(op, durability)
    }

    /// Answers `op` from what is committed and leaves its writing to the next commit, or to one of its own
    /// within 100 ms. For an opening whose loss only makes it look unstarted: kill -9 before that loses it.
    ///
    /// The answer is what would be written now: should another process write to the run before, it is decided
    /// anew, and may come out otherwise. Gives `op` back where somebody is at work: submit it then.
    fn ahead(&self, op: Op) -> Result<Result<Outcome, Error>, Op> {
        Err(op)
    }

    fn run_no(&self, id: &RunId) -> Result<Option<RunNo>, Error>;
    fn run(&self, no: RunNo) -> Result<Option<RunView>, Error>;
    fn runs(&self, filter: &RunFilter) -> Result<Vec<RunView>, Error>;
    /// Approvals of all runs, or of one; the newest first, by when they were asked for.
    fn approvals(&self, filter: &ApprovalFilter) -> Result<Vec<Entry>, Error>;
    fn envelope(&self, no: EnvelopeNo) -> Result<Option<Envelope>, Error>;
    /// The named budgets that were not removed, in the order in which they were made.
    fn budgets(&self) -> Result<Vec<BudgetView>, Error>;
    /// All attempts of a run, oldest first.
    fn attempts(&self, run: RunNo) -> Result<Vec<Attempt>, Error>;
    fn entry(&self, run: RunNo, seq: Seq) -> Result<Option<Entry>, Error>;
    /// Entries after `after`, in order, at most `limit`.
    fn entries(&self, run: RunNo, after: Seq, limit: usize) -> Result<Vec<Entry>, Error>;
    /// The newest entry of each item of a job, in order: what a resume needs, in size and time linear in the page.
    /// With `values`, each with what was recorded (a result, or an error) where that is stored in at most
    /// `WHOLE_VALUE` bytes; what is larger is read with `payload`. One query.
    fn items(&self, run: RunNo, page: &Page) -> Result<Vec<(ItemRow, Option<Payload>)>, Error>;
    /// The steps of a run after `after`, in order, at most `limit`, each with what was recorded where that
    /// is stored in at most `INLINE_VALUE` bytes; what is larger is read with `payload`. One query.
    fn steps(&self, run: RunNo, after: Seq, limit: usize) -> Result<Vec<(StepRow, Option<Payload>)>, Error>;
    /// The newest entry that is sought.
    fn newest(&self, run: RunNo, sought: &Sought<'_>) -> Result<Option<Entry>, Error>;
    /// The newest call of a run whose request body is kept, if it is among its last 64 stored bodies: a
    /// base after a restart. Bounded, because nothing is lost without one.
    fn newest_request(&self, run: RunNo) -> Result<Option<Seq>, Error>;
    /// Stored bytes, the parts of a long payload joined.
    fn payload(&self, run: RunNo, seq: Seq, role: Role) -> Result<Option<Payload>, Error>;
    fn live_instances(&self) -> Result<Vec<Instance>, Error>;
    fn instance(&self, no: InstanceNo) -> Result<Option<Instance>, Error>;
    fn ledger(&self, since: Micros, until: Micros) -> Result<Vec<LedgerLine>, Error>;
    /// The keys that sign run tokens, newest first. Made with the store.
    fn token_keys(&self) -> Result<Vec<TokenKey>, Error>;
    /// What the database itself finds wrong with what it keeps, a line for each; reads everything. With `reindex`,
    /// after it made anew what it can tell from the rest: its indexes. No row is changed.
    fn damage(&self, reindex: bool) -> Result<Vec<String>, Error> {
        let _ = reindex;
        Ok(Vec::new())
    }
    /// The store's clock.
    fn now(&self) -> Result<Micros, Error>;
    /// Where it is, for messages. Holds no password.
    fn place(&self) -> String;
}

/// Submits a verb and gets its own answer back.
pub trait Ask {
    fn ask<V: Verb>(&self, verb: V, durability: Durability) -> Pending<V>;
    /// `ask` by `Store::submit_here`.
    fn ask_here<V: Verb>(&self, verb: V, durability: Durability) -> Pending<V>;
    /// Asks and blocks until the answer is there. Not for async code.
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

/// A future outcome: await it, or block on `wait`.
pub struct Ticket(Inner);

enum Inner {
    Ready(Option<Result<Outcome, Error>>),
    Later(oneshot::AsyncReceiver<Result<Outcome, Error>>),
}

/// Where a store's writer puts the outcome.
pub type Promise = oneshot::Sender<Result<Outcome, Error>>;

impl Ticket {
    /// A ticket and the promise that resolves it. A dropped promise resolves it as `Closed`.
    pub fn new() -> (Promise, Ticket) {
        let (tx, rx) = oneshot::async_channel();
        (tx, Ticket(Inner::Later(rx)))
    }

    pub fn ready(outcome: Result<Outcome, Error>) -> Ticket {
        Ticket(Inner::Ready(Some(outcome)))
    }

    /// Blocks until it resolves. Not for async code.
    pub fn wait(self) -> Result<Outcome, Error> {
        match self.0 {
            Inner::Ready(r) => r.unwrap_or(Err(Error::Closed)),
            Inner::Later(rx) => pollster::block_on(rx).unwrap_or(Err(Error::Closed)),
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

/// A ticket that knows its verb.
pub struct Pending<V> {
    ticket: Ticket,
    verb: PhantomData<fn() -> V>,
}

impl<V: Verb> Pending<V> {
    /// Blocks until it resolves. Not for async code.
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
