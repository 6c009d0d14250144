//! Tell: a person's word to a run: stop, cancel, complete.

use crate::{
    attempt::Exit,
    engine::{Error, guard},
    id::{AttemptNo, Micros, RunNo, Slot},
    loaded::{Loaded, Need},
    status::{Event, Status},
};

/// What a person says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// End the agent and leave the run to be resumed.
    Stop,
    Cancel {
        reason: Option<String>,
    },
    Complete,
}

/// A run that a live supervisor drives is asked: its next heartbeat learns of it, or between two
/// attempts the first heartbeat of the next. Any other changes at once. Synced.
#[derive(Clone, Debug)]
pub struct Tell {
    pub run: RunNo,
    pub word: Word,
}

impl Tell {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run), Need::OpenAttempts(self.run), Need::Lease(self.run, Slot::DRIVER)]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Status, Error> {
        let event = match &self.word {
            Word::Stop => Event::Interrupt,
            Word::Cancel { .. } => Event::Cancel,
            Word::Complete => Event::Complete,
        };
        let driven = guard::driver(l, l.run(self.run)?, Slot::DRIVER).is_some();
        let run = l.run_mut(self.run)?;
        if self.word == Word::Stop && !run.status.is_ended() {
            run.stop_requested = true;
            if driven {
                return Ok(run.status);
            }
        }
        let after = guard::shift(run, event, now)?;
        if let (Word::Cancel { reason: Some(reason) }, Status::Cancelled) = (&self.word, after) {
            run.error = Some(reason.clone());
        }
        self.end_header_attempts(l, now);
        Ok(after)
    }

    /// Attempts with a driver are ended by it, when it has ended the agent.
    fn end_header_attempts(&self, l: &mut Loaded, now: Micros) {
        let open: Vec<AttemptNo> = l
            .attempts
            .iter()
            .map(|a| &a.value)
            .filter(|a| a.run == self.run && a.is_open() && a.instance.is_none())
            .map(|a| a.no)
            .collect();
        for no in open {
            if let Some(a) = l.attempt_mut(self.run, no) {
                a.ended_at = Some(now);
                a.exit = Some(Exit::default());
            }
        }
    }
}
