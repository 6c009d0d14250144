//! Give back tool: takes back that a tool call's answer was delivered.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
    },
    journal::{Kind, State},
    words::id::{Micros, OpNo, RunNo, Seq},
};

/// Notes that the answer to a tool call, or the word that it is in doubt, reached a client that died before its model had
/// it. The next equal call gets it, under whatever id.
///
/// The caller makes sure that the client's processes have ended. Idempotent. Returns the call's state; one that is open or
/// void has no answer, and stays as it is. Errors: `UnknownEntry`, also for an entry that another operation has opened or
/// taken over since: a database that lost its last commits gives a number out a second time.
#[derive(Clone, Debug)]
pub struct GiveBackTool {
    pub run: RunNo,
    pub seq: Seq,
    /// Operation that had opened the entry, or taken it over last, when the caller read it.
    pub op: OpNo,
}

impl GiveBackTool {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run), Need::Entry(self.run, self.seq)]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<State, Error> {
        let id = l.run(self.run)?.id.to_string();
        let unknown = || Error::UnknownEntry { id: id.clone(), seq: self.seq.0 };
        let is_call = l.entry(self.run, self.seq).is_some_and(|e| e.kind == Kind::Tool && e.tool.is_some());
        let entry = l
            .entry_mut(self.run, self.seq)
            .filter(|e| is_call && e.opened_by == self.op)
            .ok_or_else(unknown)?;
        if matches!(entry.state, State::Done | State::Failed | State::Unknown) {
            (entry.delivered_to, entry.instance) = (None, None);
        }
        Ok(entry.state)
    }
}
