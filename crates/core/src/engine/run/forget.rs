//! Forget: deletes a run that ended or was moved long ago, with everything stored for it.

use crate::engine::prelude::*;

/// Deletes the run, its journal, its budget and its state. Synced. Idempotent.
///
/// A child stays while a run above it can go on: its cost is a part of that run's budget, and its work must not be
/// done and paid again. When all runs above it have ended, the child may be deleted first; their sums keep its cost.
/// A run that has ended stays while a call of its own or of a run below it is in flight: the settlement needs its entry,
/// and gives the room back to the named budgets and to the runs above.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Forget {
    pub run: RunNo,
    /// The run's ancestors, the parent first. The run is not forgotten if one of them is missing from this
    /// list.
    pub above: Vec<RunNo>,
    pub ended_before: Micros,
    /// Newest run that the caller has read. The caller has checked that no remaining run up to this number is a child
    /// of `run`.
    pub seen: RunNo,
}

/// Outcome of forgetting a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Forgot {
    Gone,
    /// The run or one above it can go on; or a call of it is in flight; or it ended too late; or it is the store's newest, whose number would be
    /// assigned again; or another process deleted it first.
    Stays,
    /// Runs that the caller has not seen have begun, and may be children of this one. Nothing was changed.
    Newer,
}

impl Forget {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![Need::Numbers, Need::Run(self.run), Need::OpenAttempts(self.run)];
        needs.extend(self.above.iter().map(|no| Need::Run(*no)));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<Forgot, Error> {
        let Ok(run) = l.run(self.run) else { return Ok(Forgot::Stays) };
        let over = run.over_since().is_some_and(|at| at < self.ended_before);
        let next = l.numbers()?.run.0;
        let newest = self.run.0 + 1 == next;
        let at_rest = !l.has_open_attempt(self.run) && !l.envelope(run.envelope())?.has_calls_in_flight();
        if !over || newest || !at_rest || !self.all_above_ended(l) {
            return Ok(Forgot::Stays);
        }
        if self.seen.0 + 1 != next {
            return Ok(Forgot::Newer);
        }
        l.forgotten.push((self.run, run.envelope(), format!("run:{}", run.id)));
        Ok(Forgot::Gone)
    }

    fn all_above_ended(&self, l: &Loaded) -> bool {
        let mut next = l.run(self.run).ok().and_then(|run| run.parent);
        while let Some(no) = next {
            let known = self.above.contains(&no).then(|| l.run(no));
            match known {
                Some(Ok(run)) if run.over_since().is_some() => next = run.parent,
                _ => return false,
            }
        }
        true
    }
}
