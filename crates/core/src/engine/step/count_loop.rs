//! Count loop: counts a turn of the agent's loop.

use std::sync::Arc;

use crate::{
    engine::{
        Error,
        actor::Actor,
        loaded::{Loaded, Need},
        rule::guard,
        step::begin_step::append,
    },
    envelope::{Refusal, unit::Unit},
    journal::{Kind, State, iteration_scope},
    words::id::{Micros, Slot},
};

/// Counts a turn of the agent's loop against the run's limit: with a `key` once over all attempts of an iteration,
/// without a key each time.
///
/// Synced. From its first loop on, the run's calls are not counted as loops.
#[derive(Clone, Debug)]
pub struct CountLoop {
    pub actor: Actor,
    pub slot: Slot,
    pub iteration: i64,
    pub key: Option<String>,
}

impl CountLoop {
    fn scope(&self) -> Arc<str> {
        iteration_scope(self.iteration)
    }

    pub fn needs(&self) -> Vec<Need> {
        let run = self.actor.run;
        let mut needs = Vec::from(guard::needs(&self.actor, self.slot));
        needs.extend(self.key.clone().map(|k| Need::Keyed(run, Kind::Loop, self.scope().to_string(), k)));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Turn, Error> {
        guard::drives(l, &self.actor)?;
        let own = l.run(self.actor.run)?.envelope();
        let counted_before = self.key.is_some()
            && l.entries.iter().any(|e| e.value.kind == Kind::Loop && e.value.key == self.key);
        if counted_before {
            return Ok(Turn::Counted { loops: l.envelope(own)?.spent[Unit::Loops] });
        }
        if let Some(refusal) = guard::open_run(l.run(self.actor.run)?)? {
            return Ok(Turn::Refused(refusal));
        }
        let envelope = l.envelope(own)?;
        let over = guard::time_over(l, self.actor.run, 0, now)?.or_else(|| {
            envelope
                .free(Unit::Loops)
                .filter(|free| *free < 1)
                .map(|free| Refusal::of(Unit::Loops, 1, envelope, free, now))
        });
        if let Some(refusal) = over {
            guard::halt(l, self.actor.run, refusal.clone())?;
            return Ok(Turn::Refused(refusal));
        }
        l.envelope_mut(own)?.spent[Unit::Loops] += 1;
        l.run_mut(self.actor.run)?.explicit_loops = true;
        append(l, &self.actor, Kind::Loop, State::Done, self.scope(), self.key.clone(), now)?;
        Ok(Turn::Counted { loops: l.envelope(own)?.spent[Unit::Loops] })
    }
}

/// Outcome of counting a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The loop is within the limit; `loops` is the new count.
    Counted {
        loops: i64,
    },
    Refused(Refusal),
}
