//! Send tool: marks a reserved tool call as sent, before it leaves.

use crate::{
    engine::{
        Error,
        actor::Actor,
        loaded::{Loaded, Need},
        rule::{closing, guard},
    },
    journal::{Kind, Opening},
    words::id::{AttemptNo, Micros, Slot},
};

/// Marks a reserved tool call as sent. From here on, a death of the process leaves the call in doubt.
///
/// Synced, before the call leaves. Errors: `LeaseLost` once the attempt is over, and those of the run's status, so that a
/// call that waited for a person leaves no stopped run; `AlreadyTaken` and `AlreadySettled` as for any closing.
#[derive(Clone, Debug)]
pub struct SendTool {
    pub opening: Opening,
    pub attempt: AttemptNo,
    pub slot: Slot,
}

impl SendTool {
    fn actor(&self) -> Actor {
        Actor { run: self.opening.run, attempt: self.attempt, instance: self.opening.instance }
    }

    pub fn needs(&self) -> Vec<Need> {
        let mut needs = Vec::from(guard::needs(&self.actor(), self.slot));
        needs.extend(closing::needs(&self.opening));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<i64, Error> {
        guard::is_driven(l, &self.actor())?;
        let Opening { run: no, seq, .. } = self.opening;
        guard::may_open(l, no)?;
        closing::open_entry(l, &self.opening, |kind| kind == Kind::Tool)?;
        let tool = l.entry_mut(no, seq).and_then(|e| e.tool.as_mut());
        let tool = tool.ok_or(Error::NotLoaded("the tool call"))?;
        tool.sends += 1;
        Ok(tool.sends)
    }
}
