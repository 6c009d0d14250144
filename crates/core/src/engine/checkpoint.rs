//! Checkpoint: the agent saves a value under a name.

use std::sync::Arc;

use crate::{
    engine::{Error, guard, step::append},
    id::{Micros, Seq, Slot},
    journal::{Kind, Role, State},
    loaded::{Loaded, Need, NewPayload},
    op::Actor,
    payload::Payload,
};

/// Appends a checkpoint; the newest of a name counts. Synced.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub actor: Actor,
    pub slot: Slot,
    pub name: String,
    pub value: Payload,
}

/// Checkpoints outlive iterations: they have one scope.
pub const SCOPE: &str = "run";

impl Checkpoint {
    pub fn needs(&self) -> Vec<Need> {
        guard::needs(&self.actor, self.slot).into()
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Seq, Error> {
        guard::drives(l, &self.actor)?;
        let name = Some(self.name.clone());
        let seq = append(l, &self.actor, Kind::Checkpoint, State::Done, Arc::from(SCOPE), name, now)?;
        l.payloads.push(NewPayload {
            run: self.actor.run,
            seq,
            role: Role::Value,
            payload: self.value.clone(),
        });
        Ok(seq)
    }
}
