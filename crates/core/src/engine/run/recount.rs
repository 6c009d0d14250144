//! Recount: corrects a job's counts after its items were counted.

use crate::{
    engine::{
        Error,
        item::claim_item::is_job,
        loaded::{Loaded, Need},
    },
    journal::job::Counts,
    words::id::{Micros, RunNo, Seq},
};

/// Sets the item counts of a job that nobody works on. Returns whether it did. Synced.
///
/// `seen` is the end of the journal that was counted: a job that has gone on since is left alone. Errors: `NotAJob`.
#[derive(Clone, Debug)]
pub struct Recount {
    pub run: RunNo,
    pub seen: Seq,
    pub counts: Counts,
}

impl Recount {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run), Need::OpenAttempts(self.run)]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<bool, Error> {
        is_job(l, self.run)?;
        if l.run(self.run)?.next_seq != self.seen || l.has_open_attempt(self.run) {
            return Ok(false);
        }
        if let Some(job) = &mut l.run_mut(self.run)?.job {
            job.counts = self.counts;
        }
        Ok(true)
    }
}
