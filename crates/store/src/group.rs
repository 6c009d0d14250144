//! Group commit: one writer thread decides whatever is queued inside one transaction.
//!
//! Operations fail only in their decision, before any write, so a group needs no savepoints. When
//! a write fails, the whole group is rolled back and each operation is tried once more, alone.

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
    words::id::{InstanceNo, Micros},
};

use crate::backend::{Backend, CommitFailed, Ground};

/// At most this many operations share a commit.
const LARGEST_GROUP: usize = 512;

/// A lazy operation waits this long for a commit to ride with.
const LAZY_AFTER: Duration = Duration::from_millis(100);

/// Who may do the work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hands {
    /// The writer thread.
    Writers,
    /// The calling thread too.
    Mine,
}

struct Job {
    op: Op,
    durability: Durability,
    promise: Option<Promise>,
    queued: Instant,
    /// It was answered ahead.
    is_foreseen: bool,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// How many of `jobs` somebody waits for.
    eager: usize,
    /// A group is being run: what comes meanwhile is the next one.
    busy: bool,
    /// The writer thread sleeps until it is woken; else it looks again by itself.
    asleep: bool,
    closing: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Held by whoever set `busy`: the writer thread, or a caller that found it idle.
    /// Taken away when the store closes.
    turn: Mutex<Option<Box<dyn Run>>>,
}

/// Runs groups, one after the other.
trait Run: Send {
    fn run(&mut self, group: Vec<Job>);
    /// What `op` would answer now. Writes nothing.
    fn foresee(&mut self, op: &Op) -> Result<Outcome, Error>;
}

/// The writer thread's handle. Dropping it commits what is queued and joins the thread.
pub struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Whose thread it is: a process forked from that one has none.
    process: u32,
}

impl Writer {
    /// Starts the writer on `backend`.
    pub fn start(backend: impl Backend + 'static) -> std::io::Result<Writer> {
        let turn = Turn { backend, instance: None, counter: 0, refused: None, foreseen: None };
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Condvar::new(),
            turn: Mutex::new(Some(Box::new(turn))),
        });
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("outlast-store".into()).spawn(move || {
            while let Some(group) = theirs.next_group() {
                theirs.run(group);
            }
            // On this thread: a backend with a runtime of its own cannot be dropped within another.
            drop(lock(&theirs.turn).take());
        })?;
        Ok(Writer { shared, thread: Some(thread), process: crate::process::id() })
    }

    /// Whether this is a copy of another process's writer, made by fork: it must not be used or ended.
    pub fn is_forked(&self) -> bool {
        self.process != crate::process::id()
    }

    /// Queues `op`, or does it on this thread where `hands` allows and nobody is at work.
    pub fn submit(&self, op: Op, durability: Durability, hands: Hands) -> Ticket {
        let (promise, ticket) = Ticket::new();
        let mut queue = lock(&self.shared.queue);
        if queue.closing {
            return Ticket::ready(Err(Error::Closed));
        }
        queue.push(Job {
            op,
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

    /// Answers `op` at once and queues it to ride with the next group; gives it back where somebody is at work.
    pub fn ahead(&self, op: Op) -> Result<Result<Outcome, Error>, Op> {
        let mut queue = lock(&self.shared.queue);
        // What rides already was answered on the same ground: two answers may not name one entry.
        if queue.closing || queue.busy || !queue.jobs.iter().all(|j| matches!(j.op, Op::Delivered(_))) {
            return Err(op);
        }
        queue.busy = true;
        drop(queue);
        let foreseen = match lock(&self.shared.turn).as_mut() {
            Some(turn) => turn.foresee(&op),
            None => Err(Error::Closed),
        };
        let mut queue = lock(&self.shared.queue);
        queue.busy = false;
        if foreseen.is_ok() {
            // Before what others queued meanwhile: they were not there when it was answered.
            queue.jobs.push_front(Job {
                op,
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
            // Its thread is the other process's; so are the locks it may have held at the fork.
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
    /// Waits for work; `None` when the store is closed and everything is done.
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

    /// Runs a group that was taken, and leaves the turn to the next.
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
    fn push(&mut self, job: Job) {
        self.eager += usize::from(job.durability != Durability::Lazy);
        self.jobs.push_back(job);
    }

    /// Whether the writer thread has to be woken. What nobody waits for it finds by itself while it is about.
    fn wants_the_writer(&self) -> bool {
        !self.busy && (self.eager > 0 || (self.asleep && !self.jobs.is_empty()))
    }

    /// Takes the next group: whoever does, runs it.
    fn take(&mut self) -> Vec<Job> {
        let n = self.jobs.len().min(LARGEST_GROUP);
        let group: Vec<Job> = self.jobs.drain(..n).collect();
        self.eager -= group.iter().filter(|j| j.durability != Durability::Lazy).count();
        self.busy = true;
        group
    }
}

/// The writer thread's own state.
struct Turn<B> {
    backend: B,
    /// This process's instance, once it has registered through this store.
    instance: Option<InstanceNo>,
    counter: i64,
    /// After an I/O error everything is refused until the store is opened anew.
    refused: Option<String>,
    /// The decision that was answered ahead last: it is not made anew where the ground is the same.
    foreseen: Option<(Ground, Loaded, Outcome)>,
}

/// What became of a group.
enum Fate {
    Committed(Vec<Result<Outcome, Error>>),
    /// Nothing of it is there.
    RolledBack(Error),
    Unclear(Error),
}

impl<B: Backend> Run for Turn<B> {
    fn foresee(&mut self, op: &Op) -> Result<Outcome, Error> {
        if let Some(why) = &self.refused {
            return Err(Error::Refused { why: why.clone() });
        }
        if self.backend.is_short_of_room() && !closes(op) {
            return Err(short_of_room());
        }
        let now = self.backend.begin_read()?;
        let foreseen = load(&mut self.backend, &op.needs(), now).and_then(|mut loaded| {
            let outcome = op::decide(op, &mut loaded, now).map_err(Error::Engine)?;
            self.foreseen = self.backend.ground().map(|ground| (ground, loaded, outcome.clone()));
            Ok(outcome)
        });
        self.backend.release();
        foreseen
    }

    fn run(&mut self, mut group: Vec<Job>) {
        if let Some(why) = &self.refused {
            let error = Error::Refused { why: why.clone() };
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
                    self.refused = Some(error.to_string());
                }
                one.iter_mut().for_each(|job| answer(job, Err(error.clone())));
            }
            Fate::Unclear(error) => self.give_up(one, error),
        }
    }

    fn give_up(&mut self, mut group: Vec<Job>, error: Error) {
        self.refused = Some(error.to_string());
        let unknown = Error::CommitUnknown { why: error.to_string() };
        group.iter_mut().for_each(|job| answer(job, Err(unknown.clone())));
    }

    /// The rows as `job` leaves them, and its outcome.
    fn decide(&mut self, job: &Job, now: Micros) -> Result<Result<(Loaded, Outcome), engine::Error>, Error> {
        if job.is_foreseen
            && let Some((ground, loaded, outcome)) = self.foreseen.take()
            && self.backend.ground() == Some(ground)
        {
            return Ok(Ok((loaded, outcome)));
        }
        let mut loaded = load(&mut self.backend, &job.op.needs(), now)?;
        Ok(op::decide(&job.op, &mut loaded, now).map(|outcome| (loaded, outcome)))
    }

    fn try_group(&mut self, group: &[Job]) -> Fate {
        let synced = group.iter().any(|j| j.durability == Durability::Synced);
        let short = self.backend.is_short_of_room();
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
        self.counter += group.len() as i64;
        if let Some(instance) = registered
            && let Err(e) = self.backend.count(instance, self.counter)
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
                let told = registered.and_then(|i| self.backend.is_committed(i, self.counter));
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

fn short_of_room() -> Error {
    Error::Full { why: "only what closes open work is taken until there is room".into() }
}

/// Operations that close what is open: the last room on a full disk is theirs.
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
        // Nobody waits for a ticket that was dropped.
        let _ = promise.send(outcome);
    }
}
