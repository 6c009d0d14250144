//! Delivered: marks that an answer reached its client whole, or that nobody receives it any longer.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        rule::{taking, within},
    },
    journal::iteration_scope,
    words::id::{AttemptNo, InstanceNo, Micros, RunNo, Seq},
};

/// Marks that the attempt received the answer whole. The only `Lazy` operation: if a crash loses it, the answer
/// is replayable once more, to an attempt that is over anyway.
#[derive(Clone, Debug)]
pub struct Delivered {
    pub run: RunNo,
    pub seq: Seq,
    pub attempt: AttemptNo,
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
}

/// Notes that a connection no longer receives the answer of an entry, so that a request at another process may have it.
///
/// Idempotent: changes nothing once another connection has the answer. Where it is lost, the answer stays taken for other
/// processes until this one ends.
#[derive(Clone, Debug)]
pub struct GiveBack {
    pub run: RunNo,
    pub seq: Seq,
    pub attempt: AttemptNo,
    /// Instance under which the answer was taken.
    pub instance: InstanceNo,
    pub connection: u64,
}

impl GiveBack {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run), Need::Attempt(self.run, self.attempt), Need::Entry(self.run, self.seq)]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<(), Error> {
        taking::give_back(l, self.run, self.seq, |t| {
            (t.attempt, t.instance, t.connection) == (self.attempt, self.instance, self.connection)
        });
        Ok(())
    }
}
