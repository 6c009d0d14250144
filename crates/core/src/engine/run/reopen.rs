//! Reopen: makes a completed run claimable again, for a loop that is started again.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        rule::guard,
    },
    run::status::{Event, Status},
    words::id::{Micros, RunNo},
};

/// Makes a completed run interrupted, so that it can be claimed. A run in any other status stays as it is.
///
/// Starts no attempt. Synced. Idempotent. Returns the run's status.
#[derive(Clone, Debug)]
pub struct Reopen {
    pub run: RunNo,
}

impl Reopen {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run)]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Status, Error> {
        let run = l.run(self.run)?;
        if run.status != Status::Completed {
            return Ok(run.status);
        }
        guard::shift(l.run_mut(self.run)?, Event::Reopen, now)
    }
}
