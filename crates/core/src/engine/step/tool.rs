//! Begin tool: records a tool call on disk before the tool begins.

use std::sync::Arc;

use crate::{
    engine::{
        Error,
        actor::Actor,
        loaded::{Loaded, Need},
        rule::guard,
        step::begin_step::append,
    },
    journal::{Kind, Opening, Role, State, payload::Payload},
    words::id::{Micros, Seq, Slot},
};

/// Opens the tool call `key`, or finds its outcome. [`Record`](super::record::Record) closes it.
///
/// A key names one tool call of the run, over all its attempts. If an ended attempt left it open, it moves to the
/// actor, which can then close it; its first `about` stays. Use `Synced`: intent before effect.
/// Errors: `LeaseLost`, so that a stale attempt begins nothing.
#[derive(Clone, Debug)]
pub struct BeginTool {
    pub actor: Actor,
    pub slot: Slot,
    pub key: String,
    /// Description of the tool call, for the next attempt and for people.
    pub about: Payload,
}

/// Scope of all tool-call entries that [`BeginTool`] opens: they outlive iterations.
pub const SCOPE: &str = "tools";

impl BeginTool {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = Vec::from(guard::needs(&self.actor, self.slot));
        needs.push(Need::Keyed(self.actor.run, Kind::Tool, SCOPE.into(), self.key.clone()));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Tool, Error> {
        guard::drives(l, &self.actor)?;
        let run = self.actor.run;
        let known = l.keyed(Kind::Tool, SCOPE, &self.key);
        let Some((opening, state, attempt)) =
            known.map(|e| (Opening::of(e).unwrap_or_default(), e.state, e.attempt))
        else {
            let key = Some(self.key.clone());
            let seq = append(l, &self.actor, Kind::Tool, State::Open, Arc::from(SCOPE), key, now)?;
            l.keep_payload(run, seq, Role::About, self.about.clone());
            return Ok(Tool::Begun(l.opening(&self.actor, seq)));
        };
        let seq = opening.seq;
        match state {
            State::Open if attempt == self.actor.attempt => Ok(Tool::Taken(opening)),
            State::Open => {
                l.take_over(&self.actor, seq).ok_or(Error::NotLoaded("the tool call"))?;
                Ok(Tool::Again(l.opening(&self.actor, seq)))
            }
            state => Ok(Tool::Ended { seq, state }),
        }
    }
}

/// State of the tool call after the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// The call is open and may begin.
    Begun(Opening),
    /// An ended attempt left the call open; it now belongs to this attempt.
    Again(Opening),
    /// The call is open in this attempt already.
    Taken(Opening),
    /// The call's outcome was recorded.
    Ended { seq: Seq, state: State },
}
