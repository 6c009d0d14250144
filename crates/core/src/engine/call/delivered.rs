//! Delivered: marks that an answer reached its client whole, or that nobody receives it any longer.

use crate::engine::{Received, prelude::*};

/// Receiver of an answer. By it an entry is known for the one whose answer was received: a database that lost its last
/// commits gives a number out a second time, and a process that was taken for dead may send what is another's by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// Connection that took a call's answer, by its number.
    Connection(u64),
    /// Process that holds a tool call.
    Process(InstanceNo),
}

/// Marks that the attempt received the answer whole. Changes nothing of an entry that is not its receiver's. The only
/// `Lazy` operation: if a crash loses it, the answer is replayable once more, to an attempt that is over anyway.
#[derive(Clone, Debug)]
pub struct Delivered {
    pub run: RunNo,
    pub seq: Seq,
    pub attempt: AttemptNo,
    pub receiver: Receiver,
    /// `x-stainless-retry-count` of the request that got the answer; 0 for a first request.
    pub count: u32,
    /// Whether the answer was replayed from the journal, and so not paid for again.
    pub replayed: bool,
}

impl Delivered {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run), Need::Attempt(self.run, self.attempt), Need::Entry(self.run, self.seq)]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<(), Error> {
        if !l.entry(self.run, self.seq).is_some_and(|e| self.is_of(e)) {
            return Ok(());
        }
        taking::give_back(l, self.run, self.seq, |t| t.attempt == self.attempt);
        let open = l.is_open(self.run, self.attempt);
        let Some(entry) = l.entry_mut(self.run, self.seq) else { return Ok(()) };
        let first = entry.delivered_to != Some(self.attempt);
        // A mark can come late: the mark of an attempt that is over must not hide a later attempt's.
        if open || entry.delivered_to.is_none() {
            entry.delivered_to = Some(self.attempt);
            entry.delivered_count = if first { self.count } else { entry.delivered_count.max(self.count) };
        }
        let (cost, opened_by, scope) = (entry.spent.cost(), entry.attempt, entry.scope.clone());
        if !self.replayed {
            return Ok(());
        }
        let run = l.run_mut(self.run)?;
        run.replayed += 1;
        run.saved_nano_usd += cost;
        // Items and steps with retries count their own answers, which `untaken` leaves out.
        let counted =
            l.attempt(self.run, self.attempt).is_some_and(|a| scope == iteration_scope(a.iteration));
        if first
            && counted
            && opened_by != self.attempt
            && !within::is_over(l, self.run, self.seq)
            && let Some(a) = l.attempt_mut(self.run, self.attempt)
        {
            a.untaken = (a.untaken - 1).max(0);
            for outer in within::around(l, self.run, self.seq) {
                if let Some(step) = l.entry_mut(self.run, outer).and_then(|e| e.step.as_mut()) {
                    step.untaken = (step.untaken - 1).max(0);
                }
            }
        }
        Ok(())
    }

    fn is_of(&self, e: &Entry) -> bool {
        let Delivered { run, seq, attempt, receiver, .. } = *self;
        match receiver {
            Receiver::Connection(connection) => {
                e.taken.is_some_and(|taker| Received { run, attempt, seq, connection }.is_of(&taker))
            }
            Receiver::Process(instance) => e.kind == Kind::Tool && e.instance == Some(instance),
        }
    }
}

/// Notes that a connection no longer receives the answer of an entry, so that a request at another process may have it.
///
/// Idempotent: changes nothing once another connection has the answer. Where it is lost, the answer stays taken for other
/// processes until this one ends.
#[derive(Clone, Debug)]
pub struct GiveBack(pub Received);

impl GiveBack {
    pub fn needs(&self) -> Vec<Need> {
        self.0.needs().into()
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<(), Error> {
        taking::give_back(l, self.0.run, self.0.seq, |taker| self.0.is_of(taker));
        Ok(())
    }
}
