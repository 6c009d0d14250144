//! Checkpoint: saves a value of the agent under a name.

use std::ops::Deref;

use crate::engine::prelude::*;

/// Appends a checkpoint; the newest of a name counts. Synced.
///
/// The amounts that the run had used by then are stored with it, as [`Used`].
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub actor: Actor,
    pub slot: Slot,
    pub name: Name,
    pub value: Payload,
}

/// Scope of all checkpoint entries in the journal: checkpoints outlive iterations.
pub const SCOPE: &str = "run";

/// Prefix of the names that are reserved for Outlast's own checkpoints of a run.
pub const OURS: &str = "outlast:";

/// Name of a checkpoint. No name that an agent chooses has the prefix [`OURS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    /// Takes a name that an agent chose. `None` if it begins with [`OURS`].
    pub fn of_agent(name: impl Into<String>) -> Option<Name> {
        Some(Name(name.into())).filter(|name| !name.starts_with(OURS))
    }

    /// Makes a name of Outlast's own: `name` behind the prefix [`OURS`].
    pub fn own(name: &str) -> Name {
        Name(format!("{OURS}{name}"))
    }

    /// Returns the name of the checkpoints that hold snapshots of the run's files.
    pub fn files() -> Name {
        Name::own("files")
    }

    /// Returns the name of the checkpoints that tell, in words, of requests that passed Outlast by.
    pub fn unmetered() -> Name {
        Name::own("unmetered")
    }
}

impl Deref for Name {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

/// Amounts a run had used when a checkpoint was saved, written in the same commit as the entry's `About` payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Cost in nano-USD, including amounts in doubt.
    pub cost_nano_usd: i64,
    pub tokens: i64,
    pub loops: i64,
    /// Wall time in milliseconds, as the run's limit counts it.
    pub wall_ms: i64,
}

impl Used {
    /// Returns the amounts that a run has used by `now`.
    pub fn of(run: &crate::run::Run, envelope: &crate::envelope::Envelope, now: Micros) -> Used {
        let used = |unit: Unit| envelope.spent[unit] + envelope.doubt[unit];
        Used {
            cost_nano_usd: used(Unit::CostNanoUsd),
            tokens: used(Unit::Tokens),
            loops: used(Unit::Loops),
            wall_ms: run.wall_ms(run.ended_at.unwrap_or(now)),
        }
    }
}

impl Checkpoint {
    pub fn needs(&self) -> Vec<Need> {
        guard::needs(&self.actor, self.slot, [])
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Seq, Error> {
        guard::is_driven(l, &self.actor)?;
        let run = l.run(self.actor.run)?;
        let used = Used::of(run, l.envelope(run.envelope())?, now);
        // Integers always serialize.
        let about = serde_json::to_vec(&used).unwrap_or_default();
        let name = Some(self.name.to_string());
        let seq = life::append(l, &self.actor, Kind::Checkpoint, State::Done, SCOPE, name, now)?.seq;
        if self.name == Name::files() {
            // For the crash-loop rule, files that an agent leaves as it dies are no progress.
            l.run_mut(self.actor.run)?.closed -= 1;
        }
        for (role, payload) in [(Role::Value, self.value.clone()), (Role::About, Payload::encode(&about))] {
            l.keep_payload(self.actor.run, seq, role, payload);
        }
        Ok(seq)
    }
}
