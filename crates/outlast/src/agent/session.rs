//! Session of an agent: kept with its run, and found again by the next attempt.

use outlast_core::{
    engine::{
        actor::Actor,
        checkpoint::{Checkpoint, Name},
    },
    journal::{Kind, Role, payload::Payload},
    store::{self, Sought, Store},
    words::id::{RunNo, Slot},
};
use serde::{Deserialize, Serialize};

/// Session of a CLI agent, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub id: String,
    /// Whether resuming the session has failed, so that no attempt resumes it again.
    #[serde(default)]
    pub spoiled: bool,
}

/// Returns the name of the checkpoint that holds the session. `agent`: name of an agent that a script started; `None`:
/// the agent of the run's own command, which has one session for each iteration of its loop (counted from 0).
pub fn key(agent: Option<&str>, iteration: i64) -> Name {
    match (agent, iteration) {
        (Some(agent), _) => Name::own(&format!("session:{agent}")),
        (None, 0) => Name::own("session"),
        (None, iteration) => Name::own(&format!("session:i{iteration}")),
    }
}

/// Returns the agent's newest stored session; `None` if there is none. Errors: those of the store; `Corrupt` if the
/// session cannot be read.
pub fn find(store: &dyn Store, run: RunNo, key: &str) -> Result<Option<Session>, store::Error> {
    let Some(entry) = store.newest(run, &Sought::done(Kind::Checkpoint, key))? else { return Ok(None) };
    let corrupt =
        |e: &dyn std::fmt::Display| store::Error::Corrupt { what: format!("checkpoint {key}: {e}") };
    let Some(kept) = store.payload(run, entry.seq, Role::Value)? else { return Ok(None) };
    let bytes = kept.decode().map_err(|e| corrupt(&e))?;
    serde_json::from_slice(&bytes).map(Some).map_err(|e| corrupt(&e))
}

/// Returns the checkpoint that stores the session. The caller commits it synced before an agent with this id starts.
pub fn keep(actor: Actor, key: Name, session: &Session) -> Checkpoint {
    let value = Payload::encode(&serde_json::to_vec(session).unwrap_or_default());
    Checkpoint { actor, slot: Slot::DRIVER, name: key, value }
}

/// Formats 16 random bytes as a UUID, version 4 of RFC 9562.
pub fn uuid(mut random: [u8; 16]) -> String {
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    let hex: String = random.iter().map(|b| format!("{b:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_of_version_4() {
        assert_eq!(uuid([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid([0; 16]), "00000000-0000-4000-8000-000000000000");
    }
}
