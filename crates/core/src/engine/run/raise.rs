//! Raise: changes a run's limits, by a person's order.

use serde::{Deserialize, Serialize};

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        rule::guard,
    },
    envelope::unit::{Limits, PerUnit, Unit},
    run::status::{Event, Status},
    words::id::{Micros, RunNo},
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
                    Error::BadLimit(format!("{} has no limit to add to; set one", unit.name()))
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
        let run = l.run(self.run)?;
        if run.status == Status::Halted && self.has_room(l, now)? {
            let open = l.has_open_attempt(self.run);
            let run = l.run_mut(self.run)?;
            return guard::shift(run, Event::Raise { open }, now);
        }
        Ok(run.status)
    }

    /// Returns whether the unit at whose limit the run halted has more room now than it had then.
    fn has_room(&self, l: &Loaded, now: Micros) -> Result<bool, Error> {
        let run = l.run(self.run)?;
        let Some(halt) = &run.halt else { return Ok(true) };
        let envelope = l.envelope(run.envelope())?;
        Ok(match halt.unit {
            Some(Unit::WallMs) => guard::is_in_wall_time(l, run, now)?,
            Some(unit) => envelope.free(unit).is_none_or(|free| free > halt.free && free > 0),
            None => true,
        })
    }
}
