//! Enter: finds or opens the attempt of a header caller, which has no supervisor.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        rule::guard,
        run::claim::{NewAttempt, end_open, open_attempt},
    },
    run::{attempt::Attempt, status::Status},
    words::id::{AttemptNo, InstanceNo, Micros, RunNo, Slot},
};

/// Finds or opens the attempt that a request's HTTP header names. A new label opens a new attempt in slot 0; without a
/// label the caller gets the run's one implicit attempt.
///
/// Synced when it opens one. Errors: `LabelEnded`; `RunHeld` when a live process drives slot 0; `NotRunning` without
/// a label when a person stopped the run, because the agent that keeps asking is what was stopped. A new label, or
/// `Tell` with `Resume`, shows that somebody wants the run to go on.
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
        guard::unhalt(l, self.run, l.has_open_attempt(self.run), now)?;
        let run = l.run(self.run)?;
        if self.label.is_none() && run.stop_requested && run.status == Status::Interrupted {
            return Err(Error::NotRunning { id: run.id.to_string(), status: run.status.name() });
        }
        if self.label.is_some() {
            end_open(l, self.run, slot, now);
        }
        let no = open_attempt(
            l,
            NewAttempt { run: self.run, slot, label: self.label.clone(), driver: None },
            now,
        )?;
        Ok(Entered { attempt: no, slot, iteration: l.run(self.run)?.iteration })
    }

    fn find(&self, l: &Loaded, slot: Slot) -> Result<Option<Entered>, Error> {
        let run = l.run(self.run)?;
        let found = match &self.label {
            Some(label) => guard::labelled(l, run, label),
            None => l
                .all::<Attempt>()
                .find(|a| a.run == self.run && a.slot == slot && a.label.is_none() && a.is_open()),
        };
        let Some(a) = found else { return Ok(None) };
        match &self.label {
            // A header caller cannot continue under the label of a supervised attempt.
            Some(label) if !a.is_open() || a.instance.is_some() => {
                Err(Error::LabelEnded { id: run.id.to_string(), label: label.clone() })
            }
            _ => Ok(Some(Entered { attempt: a.no, slot, iteration: a.iteration })),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entered {
    pub attempt: AttemptNo,
    pub slot: Slot,
    pub iteration: i64,
}
