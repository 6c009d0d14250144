//! Enter: a header caller's attempt, without a supervisor.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        op::Entered,
        rule::guard,
        run::claim::{Opening, end_open, open_attempt},
    },
    run::status::Status,
    words::id::{InstanceNo, Micros, RunNo, Slot},
};

/// Finds or opens the attempt a header names: a new label is a new attempt in slot 0, no label the
/// run's one implicit attempt.
///
/// Synced when it opens one. Errors: `LabelEnded`; `RunHeld` when a live process drives slot 0;
/// `NotRunning` without a label when a person stopped the run: an agent that just goes on asking is what
/// was stopped. A new label, or `Tell` with `Resume`, is somebody's wish that it goes on.
#[derive(Clone, Debug)]
pub struct Enter {
    pub run: RunNo,
    pub label: Option<String>,
    pub instance: InstanceNo,
}

impl Enter {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![
            Need::Instance(self.instance),
            Need::Run(self.run),
            Need::OpenAttempts(self.run),
            Need::Lease(self.run, Slot::DRIVER),
        ];
        needs.extend(self.label.clone().map(|label| Need::Labelled(self.run, label)));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Entered, Error> {
        guard::live(l, self.instance)?;
        let run = l.run(self.run)?;
        if let Some(holder) = guard::driver(l, run, Slot::DRIVER) {
            return Err(guard::held(run, holder));
        }
        let slot = if self.label.is_some() { Slot::DRIVER } else { Slot::IMPLICIT };
        if let Some(found) = self.find(l, slot)? {
            return Ok(found);
        }
        let run = l.run(self.run)?;
        if self.label.is_none() && run.stop_requested && run.status == Status::Interrupted {
            return Err(Error::NotRunning { id: run.id.to_string(), status: run.status.name() });
        }
        if self.label.is_some() {
            end_open(l, self.run, slot, now);
        }
        let no =
            open_attempt(l, Opening { run: self.run, slot, label: self.label.clone(), driver: None }, now)?;
        Ok(Entered { attempt: no, slot, iteration: l.run(self.run)?.iteration })
    }

    fn find(&self, l: &Loaded, slot: Slot) -> Result<Option<Entered>, Error> {
        let run = l.run(self.run)?;
        let found = match &self.label {
            Some(label) => guard::labelled(l, run, label),
            None => l
                .attempts
                .iter()
                .map(|a| &a.value)
                .find(|a| a.run == self.run && a.slot == slot && a.label.is_none() && a.is_open()),
        };
        let Some(a) = found else { return Ok(None) };
        match &self.label {
            // A supervised attempt's label is not a header caller's to go on under.
            Some(label) if !a.is_open() || a.instance.is_some() => {
                Err(Error::LabelEnded { id: run.id.to_string(), label: label.clone() })
            }
            _ => Ok(Some(Entered { attempt: a.no, slot, iteration: a.iteration })),
        }
    }
}
