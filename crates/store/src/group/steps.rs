//! Group commit driven by hand: the writer's queue and turn for a caller that says when the next group runs.

use std::time::Duration;

use outlast_core::{
    engine::{Op, Outcome},
    store::{Durability, Error, Ticket},
    words::OpNo,
};

use super::{
    queue::{Next, Queue},
    turn::{Run as _, Turn},
};
use crate::backend::Backend;

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
        let told = match self.turn.foresee(&op, no) {
            Some(Ok(outcome)) => {
                self.queue.answered_ahead(op, no, outcome.clone(), now);
                Ok(Ok(outcome))
            }
            Some(Err(e)) => Ok(Err(e)),
            None => Err(op),
        };
        self.queue.ran();
        told
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
