//! Resolve tool: records a person's word on a tool call in doubt.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        rule::guard,
    },
    journal::{Kind, Role, State, payload::Payload},
    words::id::{InstanceNo, Micros, RunNo, Seq},
};

/// Closes a tool call in doubt as a person states it. The next equal call gets that answer, even from a process that
/// was told of the doubt before.
///
/// Synced. Not idempotent: a call with an answer keeps it. Errors: `UnknownEntry`; `ToolRunning` while the process that
/// made the call lives; `NotInDoubt` for a call that was never sent; `AlreadySettled`; `AlreadyTaken` when it has moved
/// since it was read.
#[derive(Clone, Debug)]
pub struct ResolveTool {
    pub run: RunNo,
    pub seq: Seq,
    /// Instance that had the call when the caller read it; `None` if none had it.
    pub seen: Option<InstanceNo>,
    pub said: Said,
}

/// Outcome of a tool call, as a person states it.
#[derive(Clone, Debug)]
pub enum Said {
    /// The call was made, with this answer.
    Done(Payload),
    /// The call failed, with this answer.
    Failed(Payload),
    /// The call had no effect, and may be made again.
    Rerun,
}

impl ResolveTool {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![Need::Run(self.run), Need::Entry(self.run, self.seq)];
        needs.extend(self.seen.map(Need::Instance));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Seq, Error> {
        let (run, seq) = (self.run, self.seq);
        let id = l.run(run)?.id.to_string();
        let found = l.entry(run, seq).filter(|e| e.kind == Kind::Tool && e.tool.is_some());
        let entry = found.ok_or_else(|| Error::UnknownEntry { id: id.clone(), seq: seq.0 })?;
        let sent = entry.tool.as_ref().is_some_and(|tool| tool.is_sent());
        match entry.state {
            State::Open if entry.instance != self.seen => return Err(Error::AlreadyTaken { seq: seq.0 }),
            State::Open if guard::lives(l, entry.instance) => {
                return Err(Error::ToolRunning { id, seq: seq.0 });
            }
            State::Open if !sent => return Err(Error::ToolNotInDoubt { id, seq: seq.0 }),
            State::Open | State::Unknown => {}
            state => return Err(Error::AlreadySettled { seq: seq.0, state: state.name() }),
        }
        let (state, value) = match &self.said {
            Said::Done(value) => (State::Done, Some(value)),
            Said::Failed(value) => (State::Failed, Some(value)),
            Said::Rerun => (State::Void, None),
        };
        let entry = l.entry_mut(run, seq).ok_or(Error::NotLoaded("the tool call"))?;
        (entry.state, entry.closed_at) = (state, Some(now));
        // What was told before was the doubt, and not this answer: nobody has it, and nobody holds it.
        (entry.delivered_to, entry.instance) = (None, None);
        entry.tool.iter_mut().for_each(|tool| tool.resolved = true);
        if let Some(value) = value {
            l.keep_payload(run, seq, Role::Value, value.clone());
        }
        l.run_mut(run)?.closed += i64::from(state == State::Done);
        Ok(seq)
    }
}
