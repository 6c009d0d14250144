//! Limits of a run: raises and amends them, halts a run at one, counts anew.

use crate::{
    engine::{item::is_job, prelude::*},
    envelope::PerUnit,
    journal::Counts,
    run::Unpriced,
};

/// Adds to limits, sets them, or lifts them. Once the limit that halted a run has room again, the run goes to
/// `interrupted`, or to `running` while an attempt is open.
///
/// Synced. Errors: `BadLimit` when the result would be negative or there is no limit to add to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Raise {
    pub run: RunNo,
    pub add: Limits,
    pub set: Limits,
    pub lift: PerUnit<bool>,
}

impl Raise {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run), Need::OpenAttempts(self.run)]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Status, Error> {
        let own = l.run(self.run)?.envelope();
        let envelope = l.envelope_mut(own)?;
        for unit in Unit::ALL {
            if let Some(add) = self.add[unit] {
                let limit = envelope.limits[unit].ok_or_else(|| {
                    Error::BadLimit(format!("{} has no limit to add to; set one", unit.word()))
                })?;
                envelope.limits[unit] = Some(limit.saturating_add(add));
            }
            if let Some(set) = self.set[unit] {
                envelope.limits[unit] = Some(set);
            }
            if self.lift[unit] {
                envelope.limits[unit] = None;
            }
            if let Some(limit) = envelope.limits[unit].filter(|v| *v < 0) {
                return Err(Error::BadLimit(format!("{} would become {limit}", unit.name())));
            }
        }
        let status = l.run(self.run)?.status;
        if status == Status::Halted {
            if self.has_room(l, now)? {
                let open = l.has_open_attempt(self.run);
                return guard::shift(l.run_mut(self.run)?, Event::Raise { open }, now);
            }
            // What a halt tells is as of now: a limit that was lowered must not be told as it was.
            let envelope = l.envelope(own)?.clone();
            if let Some(halt) = &mut l.run_mut(self.run)?.halt {
                halt.follow(&envelope);
            }
        }
        Ok(status)
    }

    /// Returns whether the unit at whose limit the run halted has more room now than it had then.
    fn has_room(&self, l: &Loaded, now: Micros) -> Result<bool, Error> {
        let run = l.run(self.run)?;
        let Some(halt) = &run.halt else { return Ok(true) };
        let envelope = l.envelope(run.envelope())?;
        Ok(match halt.unit {
            // Its own budget did not halt it.
            _ if halt.whose.is_some() => false,
            Some(Unit::WallMs) => guard::is_in_wall_time(l, run, now)?,
            Some(unit) => envelope.free(unit).is_none_or(|free| free > halt.free && free > 0),
            None => halt.moved.is_none(),
        })
    }
}

/// Writes the run's spec with new prices, another directory of its command or other files of its program, or changes the
/// rule for models without a known price. A run that was halted for an unknown price may then go on.
///
/// `spec` must equal the old one except for these three. Calls settled before keep their cost: each names the table
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
        // The same line finds the run again where it works now.
        if let (Some(_), Some(command)) = (&run.command_key, &self.spec.command) {
            run.command_key = Some(command.key(run.parent));
        }
        match &run.halt {
            Some(halt) if run.status == Status::Halted && halt.code == "price_unknown" => {
                guard::shift(run, Event::Raise { open }, now)
            }
            _ => Ok(run.status),
        }
    }
}

/// Halts a run. Answers the status that it has then.
///
/// Synced. Idempotent: a run that is halted keeps its first reason, and one that has ended stays ended.
#[derive(Clone, Debug)]
pub struct Halt {
    pub run: RunNo,
    pub refusal: Refusal,
}

impl Halt {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run)]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<Status, Error> {
        guard::halt(l, self.run, self.refusal.clone())?;
        Ok(l.run(self.run)?.status)
    }
}

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
