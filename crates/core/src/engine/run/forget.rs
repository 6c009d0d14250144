//! Forget: a run that ended long ago goes, with all that was kept of it.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
    },
    words::id::{Micros, RunNo},
};

/// Deletes the run, its journal, its budget and its state. Synced. Idempotent.
///
/// A child stays while one above it can go on: what it spent is a part of that one's budget, and what it did is not to
/// be done and paid again. When all above it have ended, it may go before them; their sums keep what it spent.
#[derive(Clone, Debug)]
pub struct Forget {
    pub run: RunNo,
    /// Its parent, the parent's parent, and so on. One that is left out keeps the run.
    pub above: Vec<RunNo>,
    pub ended_before: Micros,
    /// The newest run that the caller has seen: of all up to it, those that stay are no children of this one.
    pub seen: RunNo,
}

/// What became of a run that was to be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgot {
    Gone,
    /// It can go on, or one above it; it ended too late; it is the store's newest, whose number would be given again;
    /// or another collector was faster.
    Stays,
    /// Runs have begun that the caller has not seen, and may be children of it. Nothing was changed.
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
        let over = run.status.is_ended() && run.ended_at.is_some_and(|at| at < self.ended_before);
        let next = l.numbers()?.run.0;
        let newest = self.run.0 + 1 == next;
        if !over || newest || l.has_open_attempt(self.run) || !self.all_above_ended(l) {
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
                Some(Ok(run)) if run.status.is_ended() => next = run.parent,
                _ => return false,
            }
        }
        true
    }
}
