//! Queue of a store's writer: the operations that wait for the next group, and when that group is due.
//!
//! The queue has neither a thread nor a clock. Times are passed in, as durations since any fixed moment.

use std::{collections::VecDeque, time::Duration};

use outlast_core::{
    engine::{Op, Outcome},
    store::{Durability, Error, Promise, Ticket},
    words::OpNo,
};

/// Largest number of operations that share a commit.
const LARGEST_GROUP: usize = 512;

/// Longest time that a lazy operation waits for another commit to join.
const LAZY_AFTER: Duration = Duration::from_millis(100);

/// Operation in the queue, with the promise that its outcome resolves.
pub struct Job {
    pub op: Op,
    /// Number of the operation. The entries that it opens keep it.
    pub no: OpNo,
    pub durability: Durability,
    pub promise: Option<Promise>,
    /// Time at which the operation was queued.
    queued: Duration,
    /// Outcome that the caller was given before the commit (`Store::ahead`); `None` if it waits for the commit.
    pub foreseen: Option<Outcome>,
}

/// Queued operations in the order in which they came.
pub struct Queue {
    jobs: VecDeque<Job>,
    /// Number of the last operation that was queued.
    last: OpNo,
    /// Number of `jobs` that are not lazy: a caller waits for each of them.
    eager: usize,
    /// Whether a group is running. Jobs queued meanwhile form the next group.
    busy: bool,
    /// Whether the writer thread sleeps without a timeout and must be woken. If not, it looks at the queue by itself.
    pub asleep: bool,
    closing: bool,
}

/// Next work of the queue.
pub enum Next {
    /// A group to run, after which `Queue::ran` is called.
    Group(Vec<Job>),
    /// Only lazy operations are queued: their group is due after this time.
    After(Duration),
    /// Nothing to do now: nothing is queued, or a group is running.
    Nothing,
    /// Nothing will come any more: the queue is closed and empty.
    Closed,
}

impl Queue {
    /// Makes an empty queue whose operations are numbered from `start`.
    pub fn new(start: OpNo) -> Queue {
        Queue { jobs: VecDeque::new(), last: start, eager: 0, busy: false, asleep: false, closing: false }
    }

    fn next_no(&mut self) -> OpNo {
        self.last.0 += 1;
        self.last
    }

    /// Queues `op`. A queue that is closing refuses it.
    pub fn submit(&mut self, op: Op, durability: Durability, now: Duration) -> Ticket {
        if self.closing {
            return Ticket::ready(Err(Error::Closed));
        }
        let (promise, ticket) = Ticket::new();
        self.eager += usize::from(durability != Durability::Lazy);
        let (promise, no) = (Some(promise), self.next_no());
        self.jobs.push_back(Job { op, no, durability, promise, queued: now, foreseen: None });
        ticket
    }

    /// Returns the group to run on the thread that has just queued an operation of `durability`; `None` if
    /// another thread runs a group, or other operations wait.
    pub fn take_mine(&mut self, durability: Durability) -> Option<Vec<Job>> {
        let mine = !self.busy && !self.closing && self.eager == 1 && durability != Durability::Lazy;
        mine.then(|| self.take())
    }

    /// Keeps groups from running while one operation is answered before its commit (`Store::ahead`). Returns the
    /// operation's number, or `None` if a group runs or other work is queued.
    pub fn begins_ahead(&mut self) -> Option<OpNo> {
        // Jobs answered ahead saw the same rows: two answers could name the same entry.
        let free = !self.closing && !self.busy && self.jobs.iter().all(|j| matches!(j.op, Op::Delivered(_)));
        self.busy |= free;
        // Numbered before jobs that are queued meanwhile, which follow it in the queue.
        free.then(|| self.next_no())
    }

    /// Ends what `begins_ahead` let begin, and returns what the caller is told: the outcome before its commit, with the
    /// operation in front of all others; or `op` as the error if nothing is foreseen.
    pub fn tells_ahead(
        &mut self,
        op: Op,
        no: OpNo,
        foreseen: Option<Result<Outcome, Error>>,
        now: Duration,
    ) -> Result<Result<Outcome, Error>, Op> {
        self.ran();
        let Some(told) = foreseen else { return Err(op) };
        if let Ok(outcome) = &told {
            // Placed before jobs queued meanwhile: they did not exist when `op` was answered.
            let (durability, foreseen) = (Durability::Lazy, Some(outcome.clone()));
            self.jobs.push_front(Job { op, no, durability, promise: None, queued: now, foreseen });
        }
        Ok(told)
    }

    /// Returns the next group, or the time until it is due.
    pub fn next(&mut self, now: Duration) -> Next {
        if self.busy {
            return Next::Nothing;
        }
        let age = self.jobs.front().map(|j| now.saturating_sub(j.queued));
        match age {
            None if self.closing => Next::Closed,
            None => Next::Nothing,
            Some(age) if self.eager > 0 || self.closing || age >= LAZY_AFTER => Next::Group(self.take()),
            Some(age) => Next::After(LAZY_AFTER - age),
        }
    }

    /// Notes that the group that `take_mine` or `next` let begin is over.
    pub fn ran(&mut self) {
        self.busy = false;
    }

    /// Refuses new operations from now on.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Returns whether the writer thread has to be woken. Lazy jobs do not wake it while it is awake or on a timer.
    pub fn wants_the_writer(&self) -> bool {
        !self.busy && (self.closing || self.eager > 0 || (self.asleep && !self.jobs.is_empty()))
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
