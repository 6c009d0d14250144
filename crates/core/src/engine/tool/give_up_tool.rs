//! Give up tool: closes a tool call that gets no answer.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        rule::closing,
    },
    journal::{Kind, Opening, State},
    words::id::Micros,
};

/// Closes a tool call whose server died, or whose client withdrew it: `void` if no server took it, else `unknown`.
///
/// Synced. Authorised by the entry's own process. Errors: `UnknownEntry`, `AlreadyTaken`, `AlreadySettled`.
#[derive(Clone, Debug)]
pub struct GiveUpTool {
    pub opening: Opening,
    /// Whether the server is known not to have taken the call when it was last sent: it could not be reached, or refused.
    /// An earlier life may have sent it too, and nobody knows what became of that.
    pub refused: bool,
}

impl GiveUpTool {
    pub fn needs(&self) -> Vec<Need> {
        closing::needs(&self.opening)
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<State, Error> {
        let Opening { run, seq, .. } = self.opening;
        closing::open_entry(l, &self.opening, |kind| kind == Kind::Tool)?;
        let entry = l.entry_mut(run, seq).ok_or(Error::NotLoaded("the tool call"))?;
        let sends = entry.tool.as_ref().map_or(1, |tool| tool.sends);
        entry.state = if sends > i64::from(self.refused) { State::Unknown } else { State::Void };
        entry.closed_at = Some(now);
        Ok(entry.state)
    }
}
