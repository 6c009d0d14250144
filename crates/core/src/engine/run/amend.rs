//! Amend: replaces prices or the directory that a run began with.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        rule::guard,
    },
    run::{
        Spec, Unpriced,
        status::{Event, Status},
    },
    words::id::{Micros, RunNo},
};

/// Writes the run's spec with new prices or another directory of its command, or changes the rule for models without a
/// known price. A run that was halted for an unknown price may then go on.
///
/// `spec` must equal the old one except for these two. Calls settled before keep their cost: each names the table
/// it was priced by. Synced. Idempotent. Errors: `RunEnded`.
#[derive(Clone, Debug)]
pub struct Amend {
    pub run: RunNo,
    pub spec: Spec,
    /// Rule for models without a known price from now on; `None`: as before.
    pub unpriced: Option<Unpriced>,
}

impl Amend {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run), Need::OpenAttempts(self.run)]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Status, Error> {
        let run = l.run(self.run)?;
        if matches!(run.status, Status::Completed | Status::Cancelled) {
            return Err(Error::RunEnded { id: run.id.to_string(), status: run.status.name() });
        }
        l.specs.push((self.run, self.spec.clone()));
        let open = l.has_open_attempt(self.run);
        let run = l.run_mut(self.run)?;
        run.policy.unpriced = self.unpriced.unwrap_or(run.policy.unpriced);
        match &run.halt {
            Some(halt) if run.status == Status::Halted && halt.code == "price_unknown" => {
                guard::shift(run, Event::Raise { open }, now)
            }
            _ => Ok(run.status),
        }
    }
}
