//! Begin iteration: what a turn of the run's loop began with.

use crate::{
    engine::{
        Error,
        actor::Actor,
        loaded::{Loaded, Need, NewPayload},
        rule::guard,
        step::begin_step::append,
    },
    journal::{Kind, Role, State, iteration_scope, payload::Payload},
    words::id::{Micros, Seq, Slot},
};

/// Keeps the standard input of the attempt's iteration, before its first attempt reads it.
///
/// A restart of the same iteration finds it with `reads::iterations::input`. Synced. Idempotent: what an iteration began with
/// stays. `mark`: what stood before a loop's first iteration, so that this one can be told to have changed it.
/// Errors: `LeaseLost`.
#[derive(Clone, Debug)]
pub struct BeginIteration {
    pub actor: Actor,
    /// From 0, as the attempt was claimed in.
    pub iteration: i64,
    pub input: Option<Payload>,
    pub mark: Option<String>,
}

impl BeginIteration {
    pub fn needs(&self) -> Vec<Need> {
        let run = self.actor.run;
        let mut needs = Vec::from(guard::needs(&self.actor, Slot::DRIVER));
        let scope = iteration_scope(self.iteration).to_string();
        needs.push(Need::Keyed(run, Kind::Iteration, scope, key(self.iteration)));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Seq, Error> {
        guard::drives(l, &self.actor)?;
        let run = self.actor.run;
        let begun = |e: &crate::journal::Entry| e.run == run && e.kind == Kind::Iteration;
        if let Some(entry) = l.entries.iter().map(|r| &r.value).find(|e| begun(e)) {
            return Ok(entry.seq);
        }
        let scope = iteration_scope(self.iteration);
        let seq =
            append(l, &self.actor, Kind::Iteration, State::Done, scope, Some(key(self.iteration)), now)?;
        if let Some(payload) = self.input.clone() {
            l.payloads.push(NewPayload { run, seq, role: Role::Stdin, payload });
        }
        let row = l.run_mut(run)?;
        // To begin is no progress yet, for the crash-loop rule: to finish is.
        row.closed -= 1;
        if let Some(turns) = row.turns.as_mut().filter(|t| t.judged == 0 && t.mark.is_none()) {
            turns.mark.clone_from(&self.mark);
        }
        Ok(seq)
    }
}

/// The key of an iteration: its number as people count them.
pub fn key(iteration: i64) -> String {
    (iteration + 1).to_string()
}
