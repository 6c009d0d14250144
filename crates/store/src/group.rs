//! Group commit: one writer decides all queued operations inside one transaction.
//!
//! An operation fails only in its decision, before any write, so a group needs no savepoints. When a write fails,
//! the whole group is rolled back and each operation is tried once more, alone.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use outlast_core::{
    engine::{
        self,
        loaded::Loaded,
        op::{self, Op, Outcome},
    },
    store::{Durability, Error, Promise, Ticket, load::load},
    words::id::{InstanceNo, Micros, OpNo},
};

use crate::{
    backend::{Backend, CommitFailed, Ground},
    process::Maker,
};

/// Largest number of operations that share a commit.
const LARGEST_GROUP: usize = 512;

/// Longest time that a lazy operation waits for another commit to join.
const LAZY_AFTER: Duration = Duration::from_millis(100);

/// Threads that may run an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hands {
    /// The writer thread only.
    Writers,
    /// The calling thread too, if no group is running.
    Mine,
}

struct Job {
    op: Op,
    /// Number of the operation, which entries keep that it opens.
    no: OpNo,
    durability: Durability,
    promise: Option<Promise>,
    queued: Instant,
    /// Whether the operation was already answered by `Writer::ahead`.
    is_foreseen: bool,
}

struct Queue {
    jobs: VecDeque<Job>,
    /// Number of the last operation.
    last: OpNo,
    /// Number of `jobs` that are not lazy, so that somebody waits for them.
    eager: usize,
    /// A group is running. Jobs queued meanwhile form the next group.
    busy: bool,
    /// The writer thread sleeps without a timeout and must be woken; otherwise it looks at the queue by itself.
    asleep: bool,
    closing: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Held by whoever set `busy`: the writer thread, or a caller that found it idle. `None` once the store is closed.
    turn: Mutex<Option<Box<dyn Run>>>,
}

/// Runs groups one after the other.
trait Run: Send {
    fn run(&mut self, group: Vec<Job>);
    /// Returns the outcome `op` would have now. Writes nothing.
    fn foresee(&mut self, op: &Op, no: OpNo) -> Result<Outcome, Error>;
}

/// Handle of the writer thread. Dropping it commits what is queued and joins the thread.
pub struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Process that started the thread. A forked child has no such thread.
    maker: Maker,
}

impl Writer {
    /// Starts the writer thread on `backend`.
    ///
    /// Its operations are numbered from a random start: two processes share no number, even if one was given the
    /// instance's number of the other after a loss of commits.
    pub fn start(backend: impl Backend + 'static) -> std::io::Result<Writer> {
        let mut start = [0; 8];
        getrandom::fill(&mut start)?;
        // Six bytes of a row.
        let last = OpNo((u64::from_le_bytes(start) >> 18) as i64);
        let turn = Turn { backend, instance: None, refused: None, foreseen: None };
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                jobs: VecDeque::new(),
                last,
                eager: 0,
                busy: false,
                asleep: false,
                closing: false,
            }),
            wake: Condvar::new(),
            turn: Mutex::new(Some(Box::new(turn))),
        });
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("outlast-store".into()).spawn(move || {
            while let Some(group) = theirs.next_group() {
                theirs.run(group);
            }
            // Dropped on this thread: a backend with its own runtime cannot be dropped inside another runtime.
            drop(lock(&theirs.turn).take());
        })?;
        Ok(Writer { shared, thread: Some(thread), maker: Maker::here() })
    }

    /// Returns whether this is a forked copy of another process's writer, which must not be used or closed.
    pub fn is_forked(&self) -> bool {
        self.maker.is_forked()
    }

    /// Queues `op`; not in a forked child. Runs it on the calling thread if `hands` allows that and no group is running.
    pub fn submit(&self, op: Op, durability: Durability, hands: Hands) -> Ticket {
        let (promise, ticket) = Ticket::new();
        let mut queue = lock(&self.shared.queue);
        if queue.closing {
            return Ticket::ready(Err(Error::Closed));
        }
        let no = queue.next_no();
        queue.push(Job {
            op,
            no,
            durability,
            promise: Some(promise),
            queued: Instant::now(),
            is_foreseen: false,
        });
        if !queue.busy && queue.eager == 1 && durability != Durability::Lazy && hands == Hands::Mine {
            let group = queue.take();
            drop(queue);
            self.shared.run(group);
            return ticket;
        }
        let wake = queue.wants_the_writer();
        drop(queue);
        if wake {
            self.shared.wake.notify_one();
        }
        ticket
    }

    /// Answers `op` at once and queues it for the next group.
    /// Gives `op` back if a group is running or other work is queued.
    pub fn ahead(&self, op: Op) -> Result<Result<Outcome, Error>, Op> {
        let mut queue = lock(&self.shared.queue);
        // Jobs answered ahead saw the same rows: two answers could name the same entry.
        if queue.closing || queue.busy || !queue.jobs.iter().all(|j| matches!(j.op, Op::Delivered(_))) {
            return Err(op);
        }
        queue.busy = true;
        // Before those of jobs queued meanwhile, which follow it in the queue.
        let no = queue.next_no();
        drop(queue);
        let foreseen = match lock(&self.shared.turn).as_mut() {
            Some(turn) => turn.foresee(&op, no),
            None => Err(Error::Closed),
        };
        let mut queue = lock(&self.shared.queue);
        queue.busy = false;
        if foreseen.is_ok() {
            // Placed before jobs queued meanwhile: they did not exist when `op` was answered.
            queue.jobs.push_front(Job {
                op,
                no,
                durability: Durability::Lazy,
                promise: None,
                queued: Instant::now(),
                is_foreseen: true,
            });
        }
        let wake = queue.wants_the_writer();
        drop(queue);
        if wake {
            self.shared.wake.notify_one();
        }
        Ok(foreseen)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.is_forked() {
            // The thread belongs to the other process, as do the locks it may have held at the fork.
            return std::mem::forget(self.thread.take());
        }
        lock(&self.shared.queue).closing = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic in the writer has already failed its tickets.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Waits for work. `None` when the store is closed and the queue is empty.
    fn next_group(&self) -> Option<Vec<Job>> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.busy {
                queue = self.sleep(queue);
                continue;
            }
            if queue.eager > 0 || (queue.closing && !queue.jobs.is_empty()) {
                break;
            }
            match queue.jobs.front().map(|j| j.queued.elapsed()) {
                None if queue.closing => return None,
                None => queue = self.sleep(queue),
                Some(age) if age >= LAZY_AFTER => break,
                Some(age) => {
                    let waited = self.wake.wait_timeout(queue, LAZY_AFTER - age);
                    queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
        Some(queue.take())
    }

    fn sleep<'a>(&self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        queue.asleep = true;
        let mut queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        queue.asleep = false;
        queue
    }

    /// Runs a group taken from the queue, then clears `busy` and wakes the writer thread if it is needed.
    fn run(&self, group: Vec<Job>) {
        if let Some(turn) = lock(&self.turn).as_mut() {
            turn.run(group);
        }
        let mut queue = lock(&self.queue);
        queue.busy = false;
        let wake = queue.wants_the_writer() || queue.closing;
        drop(queue);
        if wake {
            self.wake.notify_one();
        }
    }
}

impl Queue {
    fn next_no(&mut self) -> OpNo {
        self.last.0 += 1;
        self.last
    }

    fn push(&mut self, job: Job) {
        self.eager += usize::from(job.durability != Durability::Lazy);
        self.jobs.push_back(job);
    }

    /// Returns whether the writer thread has to be woken. Lazy jobs do not wake it while it is awake or on a timer.
    fn wants_the_writer(&self) -> bool {
        !self.busy && (self.eager > 0 || (self.asleep && !self.jobs.is_empty()))
    }

    /// Takes the next group and sets `busy`. The caller must run the group.
    fn take(&mut self) -> Vec<Job> {
        let n = self.jobs.len().min(LARGEST_GROUP);
        let group: Vec<Job> = self.jobs.drain(..n).collect();
        self.eager -= group.iter().filter(|j| j.durability != Durability::Lazy).count();
        self.busy = true;
        group
    }
}

/// State of the writer: the backend and what it remembers between groups.
struct Turn<B> {
    backend: B,
    /// Instance of this process, once it has registered through this store.
    instance: Option<InstanceNo>,
    /// Answer to all operations until the store is reopened, after an I/O error or an unclear commit.
    refused: Option<Error>,
    /// Last decision answered ahead. It is reused if the ground is unchanged.
    foreseen: Option<(Ground, Loaded, Outcome)>,
}

/// Outcome of a group's transaction.
enum Fate {
    Committed(Vec<Result<Outcome, Error>>),
    /// Nothing of the group was written.
    RolledBack(Error),
    Unclear(Error),
}

impl<B: Backend> Run for Turn<B> {
    fn foresee(&mut self, op: &Op, no: OpNo) -> Result<Outcome, Error> {
        if let Some(error) = &self.refused {
            return Err(error.clone());
        }
        if self.backend.is_short_of_room() && !closes(op) {
            return Err(short_of_room());
        }
        let _inside = self.backend.enter();
        let now = self.backend.begin_read()?;
        let foreseen = load(&mut self.backend, &op.needs(), now).and_then(|mut loaded| {
            loaded.op = no;
            let outcome = op::decide(op, &mut loaded, now).map_err(Error::Engine)?;
            self.foreseen = self.backend.ground().map(|ground| (ground, loaded, outcome.clone()));
            Ok(outcome)
        });
        self.backend.release();
        foreseen
    }

    fn run(&mut self, mut group: Vec<Job>) {
        if let Some(error) = &self.refused {
            group.iter_mut().for_each(|job| answer(job, Err(error.clone())));
            return;
        }
        match self.try_group(&group) {
            Fate::Committed(outcomes) => {
                for (job, outcome) in group.iter_mut().zip(outcomes) {
                    answer(job, outcome);
                }
            }
            Fate::Unclear(error) => self.give_up(group, error),
            Fate::RolledBack(error) => {
                if matches!(error, Error::Full { .. }) {
                    self.backend.free_ballast();
                }
                for job in group {
                    self.run_alone(job);
                }
            }
        }
    }
}

impl<B: Backend> Turn<B> {
    fn run_alone(&mut self, job: Job) {
        let mut one = vec![job];
        if self.refused.is_some() {
            return self.run(one);
        }
        match self.try_group(&one) {
            Fate::Committed(outcomes) => {
                for (job, outcome) in one.iter_mut().zip(outcomes) {
                    answer(job, outcome);
                }
            }
            Fate::RolledBack(error) => {
                if matches!(error, Error::Io { .. }) {
                    self.refused = Some(refusal_after(&error));
                }
                one.iter_mut().for_each(|job| answer(job, Err(error.clone())));
            }
            Fate::Unclear(error) => self.give_up(one, error),
        }
    }

    fn give_up(&mut self, mut group: Vec<Job>, error: Error) {
        self.refused = Some(refusal_after(&error));
        let unknown = Error::CommitUnknown { why: error.to_string() };
        group.iter_mut().for_each(|job| answer(job, Err(unknown.clone())));
    }

    /// Decides `job` and returns the rows as it leaves them, with its outcome.
    fn decide(&mut self, job: &Job, now: Micros) -> Result<Result<(Loaded, Outcome), engine::Error>, Error> {
        if job.is_foreseen
            && let Some((ground, loaded, outcome)) = self.foreseen.take()
            && self.backend.ground() == Some(ground)
        {
            return Ok(Ok((loaded, outcome)));
        }
        let mut loaded = load(&mut self.backend, &job.op.needs(), now)?;
        loaded.op = job.no;
        Ok(op::decide(&job.op, &mut loaded, now).map(|outcome| (loaded, outcome)))
    }

    fn try_group(&mut self, group: &[Job]) -> Fate {
        let synced = group.iter().any(|j| j.durability == Durability::Synced);
        let short = self.backend.is_short_of_room();
        let _inside = self.backend.enter();
        let now = match self.backend.begin(synced) {
            Ok(now) => now,
            Err(e) => return Fate::RolledBack(e),
        };
        let mut outcomes = Vec::with_capacity(group.len());
        let mut wrote = false;
        let mut registered = self.instance;
        for job in group {
            if short && !closes(&job.op) {
                outcomes.push(Err(short_of_room()));
                continue;
            }
            let decided = self.decide(job, now).and_then(|decided| match decided {
                Err(e) => Ok(Err(Error::Engine(e))),
                Ok((loaded, outcome)) => {
                    if loaded.is_touched() {
                        wrote = true;
                        self.backend.apply(loaded)?;
                    }
                    Ok(Ok(outcome))
                }
            });
            match decided {
                Ok(outcome) => {
                    if let Ok(Outcome::Registered(no)) = &outcome {
                        registered = Some(*no);
                    }
                    outcomes.push(outcome);
                }
                Err(e) => {
                    self.backend.rollback();
                    return Fate::RolledBack(e);
                }
            }
        }
        if !wrote {
            self.backend.release();
            return Fate::Committed(outcomes);
        }
        let last = group.iter().map(|job| job.no.0).max().unwrap_or_default();
        if let Some(instance) = registered
            && let Err(e) = self.backend.count(instance, last)
        {
            self.backend.rollback();
            return Fate::RolledBack(e);
        }
        match self.backend.commit() {
            Ok(()) => {
                self.instance = registered;
                Fate::Committed(outcomes)
            }
            Err(CommitFailed::RolledBack(e)) => Fate::RolledBack(e),
            Err(CommitFailed::Unclear(e)) => {
                let told = registered.and_then(|i| self.backend.is_committed(i, last));
                match told {
                    Some(true) => {
                        self.instance = registered;
                        Fate::Committed(outcomes)
                    }
                    Some(false) => Fate::RolledBack(e),
                    None => Fate::Unclear(e),
                }
            }
        }
    }
}

/// Returns the answer to all operations after a failure that only a reopened store can get over.
fn refusal_after(error: &Error) -> Error {
    match error {
        Error::Vanished { .. } => error.clone(),
        _ => Error::Refused { why: error.to_string() },
    }
}

fn short_of_room() -> Error {
    Error::Full { why: "only what closes open work is taken until there is room".into() }
}

/// Returns whether `op` closes open work. Such operations are accepted even on a full disk.
fn closes(op: &Op) -> bool {
    matches!(
        op,
        Op::Settle(_)
            | Op::Record(_)
            | Op::RecordItem(_)
            | Op::ReturnItem(_)
            | Op::EndAttempt(_)
            | Op::DeclareDead(_)
            | Op::Renew(_)
            | Op::Delivered(_)
    )
}

fn answer(job: &mut Job, outcome: Result<Outcome, Error>) {
    if let Some(promise) = job.promise.take() {
        // The receiver is gone if its ticket was dropped.
        let _ = promise.send(outcome);
    }
}
