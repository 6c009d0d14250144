//! Halt: stops a run for a reason that no admission finds.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        rule::guard,
    },
    envelope::Refusal,
    run::status::Status,
    words::id::{Micros, RunNo},
};

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
