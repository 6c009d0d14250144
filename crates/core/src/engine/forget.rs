//! Forget: a run that ended long ago goes, with all that was kept of it.

use crate::{
    engine::Error,
    id::{Micros, RunNo},
    loaded::{Loaded, Need},
};

/// Deletes the run, its journal, its budget and its state; answers whether it did. Synced.
///
/// Left alone: a run that is not completed, failed or cancelled, one that ended later than `ended_before`, and the
/// store's newest one, whose numbers would be given again. That no child of it stays is the caller's to see to.
#[derive(Clone, Debug)]
pub struct Forget {
    pub run: RunNo,
    pub ended_before: Micros,
}

impl Forget {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Numbers, Need::Run(self.run), Need::OpenAttempts(self.run)]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<bool, Error> {
        // Another collector may have been faster.
        let Ok(run) = l.run(self.run) else { return Ok(false) };
        let over = run.status.is_ended() && run.ended_at.is_some_and(|at| at < self.ended_before);
        let newest = self.run.0 + 1 == l.numbers.run.0;
        if !over || newest || l.has_open_attempt(self.run) {
            return Ok(false);
        }
        l.forgotten.push((self.run, run.envelope(), format!("run:{}", run.id)));
        Ok(true)
    }
}
