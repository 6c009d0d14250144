//! Workers' side of a process: their operations go to the store as a library's in the same process do.

use outlast_core::{
    engine::{Claim, Op, Outcome},
    journal::Opening,
    store::{Durability, Error},
    words::{RunNo, Slot},
};

use super::{Pending, Process, Then};
use crate::{
    bug::Bug,
    happening::{How, ToWorker, Whose},
    outside::Outside,
};

impl Process {
    pub(super) fn worker_claims(&mut self, worker: usize, life: u32, run: RunNo, out: &mut Outside) {
        let whose = Whose { worker, life, task: None };
        let Some(instance) = self.membership.instance() else {
            return out.to_worker(1, worker, life, ToWorker::Claimed(self.instance, Err(Error::Closed)));
        };
        let claim = Claim { run, slot: Slot::DRIVER, instance, label: None, fresh: false, restart: life > 0 };
        self.queue(claim, Durability::Synced, Then::WorkerClaimed(whose), out);
    }

    /// Submits an operation of a worker.
    pub(super) fn work(&mut self, whose: Whose, op: Op, how: How, out: &mut Outside) {
        let op = self.tampered(op, out);
        let (op, durability) = match how {
            How::Submitted(durability) => (op, durability),
            How::Ahead => match self.ahead(op, out) {
                Ok(result) => {
                    out.engine.saw("ahead");
                    note_error(&result, out);
                    self.commit_in(100, out);
                    return did(whose, result, out);
                }
                Err(op) => (op, Durability::Committed),
            },
        };
        if durability == Durability::Synced && out.engine.rng.chance(30) {
            return self.here(op, Then::Worked(whose), out);
        }
        self.queue(op, durability, Then::Worked(whose), out);
    }

    /// Submits an operation on the caller's own thread, which runs it at once if nothing else waits.
    fn here(&mut self, op: Op, then: Then, out: &mut Outside) {
        self.store.plan(out.draw_faults(std::iter::once(&op)));
        let ticket = self.store.submit_here(op.clone(), Durability::Synced, out.engine.now_ms());
        let submitted_ms = out.engine.now_ms();
        let receiving = Vec::new();
        self.pending.push(Pending { op, ticket, then, as_whom: self.instance, submitted_ms, receiving });
        self.commit(out);
    }

    fn ahead(&mut self, op: Op, out: &Outside) -> Result<Result<Outcome, Error>, Op> {
        match out.engine.bug {
            Some(Bug::AheadLost) => self.store.ahead_and_forgotten(op, out.engine.now_ms()),
            _ => self.store.ahead(op, out.engine.now_ms()),
        }
    }

    /// Changes a worker's operation as the planted defect demands.
    fn tampered(&mut self, mut op: Op, out: &mut Outside) -> Op {
        match (&mut op, out.engine.bug) {
            (Op::Put(put), Some(Bug::SwapIgnored)) => {
                put.changes.iter_mut().for_each(|change| change.expected = None);
            }
            (Op::NextTry(_), Some(Bug::TryCountedTwice)) => {
                self.queue(op.clone(), Durability::Committed, Then::Noted, out);
            }
            (Op::NextTry(next), Some(Bug::NumberReused)) => by_number(&mut next.opening, out),
            (Op::BeginStep(begin), Some(Bug::OnceForgotten)) => begin.at_most_once = false,
            (Op::ReserveTool(reserve), Some(Bug::ToolSentAgain)) => reserve.repeatable = true,
            (Op::ReserveTool(reserve), Some(Bug::ToolIdOfTheLife)) => {
                let life = reserve.actor.instance;
                reserve.id.iter_mut().for_each(|id| id.push_str(&format!(" {life}")));
            }
            (Op::Record(record), Some(Bug::NumberReused)) => by_number(&mut record.opening, out),
            (Op::RecordItem(record), Some(Bug::NumberReused)) => by_number(&mut record.opening, out),
            _ => {}
        }
        op
    }
}

/// Replaces an opening by the one that has its number now.
fn by_number(opening: &mut Opening, out: &Outside) {
    let here =
        out.engine.disk.inspect(|t, _| t.entries.get(&(opening.run, opening.seq)).and_then(Opening::of));
    *opening = here.unwrap_or(*opening);
}

/// Passes the outcome of a worker's operation to the worker.
pub(super) fn did(whose: Whose, result: Result<Outcome, Error>, out: &mut Outside) {
    let input = match whose.task {
        Some(task) => ToWorker::Did(task, result),
        None => ToWorker::End(result),
    };
    out.to_worker(1, whose.worker, whose.life, input);
}

/// Counts the errors of the engine, by their variants.
pub(super) fn note_error(result: &Result<Outcome, Error>, out: &mut Outside) {
    if let Err(Error::Engine(e)) = result {
        let name: String = format!("{e:?}").chars().take_while(|c| c.is_alphanumeric()).collect();
        out.engine.saw(&format!("error {name}"));
    }
}
