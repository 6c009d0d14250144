//! Expect items: notes how many items a job's input has.

use crate::{
    engine::{
        Error,
        item::claim_item::is_job,
        loaded::{Loaded, Need},
    },
    words::id::{Micros, RunNo},
};

/// Records the number of items in the input that a start of the job has read, so that reads can tell how much is left.
///
/// A start with another input replaces the number. Nothing depends on it. Errors: `NotAJob`.
#[derive(Clone, Debug)]
pub struct ExpectItems {
    pub run: RunNo,
    pub items: i64,
}

impl ExpectItems {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run)]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<(), Error> {
        is_job(l, self.run)?;
        if let Some(job) = &mut l.run_mut(self.run)?.job {
            job.counts.expected = self.items;
        }
        Ok(())
    }
}
