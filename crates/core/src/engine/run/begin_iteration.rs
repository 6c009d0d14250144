//! Begin iteration: records the input of an iteration of the run's loop.

use crate::{
    engine::{
        Error,
        actor::Actor,
        loaded::{Loaded, Need},
        rule::guard,
        step::begin_step::append,
    },
    journal::{Entry, Kind, Role, State, iteration_scope, payload::Payload},
    words::id::{Micros, Seq, Slot},
};

/// Stores the standard input of the attempt's iteration, before its first attempt reads it.
///
/// A restart of the iteration reads it with `reads::iterations::input`. Synced. Idempotent: the first input of an
/// iteration stays. `mark` is the state before a loop's first iteration, which shows whether that iteration changed
/// anything. Errors: `LeaseLost`.
#[derive(Clone, Debug)]
pub struct BeginIteration {
    pub actor: Actor,
    /// Number of the iteration, from 0, as the attempt was claimed in.
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
        let begun = |e: &Entry| e.run == run && e.kind == Kind::Iteration;
        if let Some(entry) = l.all::<Entry>().find(|e| begun(e)) {
            return Ok(entry.seq);
        }
        let scope = iteration_scope(self.iteration);
        let seq =
            append(l, &self.actor, Kind::Iteration, State::Done, scope, Some(key(self.iteration)), now)?;
        if let Some(payload) = self.input.clone() {
            l.keep_payload(run, seq, Role::Stdin, payload);
        }
        let row = l.run_mut(run)?;
        // For the crash-loop rule, beginning an iteration is no progress; finishing it is.
        row.closed -= 1;
        if let Some(turns) = row.turns.as_mut().filter(|t| t.judged == 0 && t.mark.is_none()) {
            turns.mark.clone_from(&self.mark);
        }
        Ok(seq)
    }
}

/// Returns the journal's key of an iteration. `iteration` counts from 0, the key from 1.
pub fn key(iteration: i64) -> String {
    (iteration + 1).to_string()
}
