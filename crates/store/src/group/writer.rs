//! Writer thread of a store, and the handle with which others give it work; and the same queue and turn driven by hand,
//! for a caller that says when the next group runs.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use outlast_core::{
    engine::{Op, Outcome},
    store::{Durability, Error, Ticket},
    words::OpNo,
};

use super::{
    queue::{Job, Next, Queue},
    turn::{Run, Turn},
};
use crate::{backend::Backend, process::Maker};

/// Threads that may run an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hands {
    /// The writer thread only.
    Writers,
    /// The writer thread, or the calling thread if no group is running.
    Mine,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Held by the thread that runs a group: the writer thread, or a caller that found the queue idle. `None`
    /// once the store is closed.
    turn: Mutex<Option<Box<dyn Run>>>,
    /// Moment from which the queue's times are measured.
    epoch: Instant,
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
    /// Operations are numbered from a random start: two processes share no number, even if one was given the other's
    /// instance number after a loss of commits.
    pub fn start(backend: impl Backend + 'static) -> std::io::Result<Writer> {
        let mut start = [0; 8];
        getrandom::fill(&mut start)?;
        // Six bytes of a row.
        let start = OpNo((u64::from_le_bytes(start) >> 18) as i64);
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue::new(start)),
            wake: Condvar::new(),
            turn: Mutex::new(Some(Box::new(Turn::new(backend)))),
            epoch: Instant::now(),
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

    /// Queues `op`; must not be called in a forked child. Runs it on the calling thread if `hands` allows that and no
    /// group is running.
    pub fn submit(&self, op: Op, durability: Durability, hands: Hands) -> Ticket {
        let mut queue = lock(&self.shared.queue);
        let ticket = queue.submit(op, durability, self.shared.now());
        let mine = if hands == Hands::Mine { queue.take_mine(durability) } else { None };
        match mine {
            Some(group) => {
                drop(queue);
                self.shared.run(group);
            }
            None => self.shared.wake_for(queue),
        }
        ticket
    }

    /// Returns the outcome that `op` has on the committed rows, and queues it for the next group. Gives `op` back as
    /// the error if a group is running, if other work is queued, or if the store cannot tell the outcome without a wait.
    pub fn ahead(&self, op: Op) -> Result<Result<Outcome, Error>, Op> {
        let Some(no) = lock(&self.shared.queue).begins_ahead() else { return Err(op) };
        let foreseen = match lock(&self.shared.turn).as_mut() {
            Some(turn) => turn.foresee(&op, no),
            None => Some(Err(Error::Closed)),
        };
        let mut queue = lock(&self.shared.queue);
        let told = queue.tells_ahead(op, no, foreseen, self.shared.now());
        self.shared.wake_for(queue);
        told
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.is_forked() {
            // The thread belongs to the other process, as do the locks it may have held at the fork.
            return std::mem::forget(self.thread.take());
        }
        lock(&self.shared.queue).close();
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic: a turn catches what its operations do.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Waits for work. `None` when the store is closed and the queue is empty.
    fn next_group(&self) -> Option<Vec<Job>> {
        let mut queue = lock(&self.queue);
        loop {
            match queue.next(self.now()) {
                Next::Group(group) => return Some(group),
                Next::Closed => return None,
                Next::After(wait) => {
                    queue = self.wake.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0;
                }
                Next::Nothing => {
                    queue.asleep = true;
                    queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    queue.asleep = false;
                }
            }
        }
    }

    /// Runs a group taken from the queue, and wakes the writer thread if there is more to do.
    fn run(&self, group: Vec<Job>) {
        if let Some(turn) = lock(&self.turn).as_mut() {
            turn.run(group);
        }
        let mut queue = lock(&self.queue);
        queue.ran();
        self.wake_for(queue);
    }

    fn wake_for(&self, queue: MutexGuard<'_, Queue>) {
        let wake = queue.wants_the_writer();
        drop(queue);
        if wake {
            self.wake.notify_one();
        }
    }
}

/// Writer of one process without its thread. Times are durations since any fixed moment of the caller's clock.
pub struct Steps<B> {
    queue: Queue,
    turn: Turn<B>,
}

impl<B: Backend> Steps<B> {
    /// Makes a writer whose operations are numbered from `start`.
    pub fn new(backend: B, start: OpNo) -> Steps<B> {
        Steps { queue: Queue::new(start), turn: Turn::new(backend) }
    }

    /// Queues `op` for a later group.
    pub fn submit(&mut self, op: Op, durability: Durability, now: Duration) -> Ticket {
        self.queue.submit(op, durability, now)
    }

    /// Queues `op`, and runs it at once if nothing else waits, as a caller's own thread does.
    pub fn submit_here(&mut self, op: Op, durability: Durability, now: Duration) -> Ticket {
        let ticket = self.queue.submit(op, durability, now);
        if let Some(group) = self.queue.take_mine(durability) {
            self.turn.run(group);
            self.queue.ran();
        }
        ticket
    }

    /// Returns the outcome that `op` has on the committed rows, and queues it. Gives `op` back as the error if other
    /// work is queued, or if the backend cannot tell the outcome without a wait.
    pub fn ahead(&mut self, op: Op, now: Duration) -> Result<Result<Outcome, Error>, Op> {
        let Some(no) = self.queue.begins_ahead() else { return Err(op) };
        let foreseen = self.turn.foresee(&op, no);
        self.queue.tells_ahead(op, no, foreseen, now)
    }

    /// Runs the next group if one is due. Otherwise returns the time until one is due, or `Idle` if nothing is queued.
    pub fn step(&mut self, now: Duration) -> Step {
        match self.queue.next(now) {
            Next::Group(group) => {
                self.turn.run(group);
                self.queue.ran();
                Step::Ran
            }
            Next::After(wait) => Step::After(wait),
            Next::Nothing | Next::Closed => Step::Idle,
        }
    }
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A group ran.
    Ran,
    /// Nothing is due before this time has passed.
    After(Duration),
    /// Nothing is queued.
    Idle,
}
