//! Session of an agent: kept with its run, and found again by the next attempt. An id that the program chooses itself is
//! kept as soon as a request, or the agent's output, names it.

use std::{collections::HashSet, sync::Arc};

use outlast_core::{
    engine::{Actor, Checkpoint, checkpoint::Name},
    journal::{Entry, Kind, Payload, Role},
    run::Origin,
    store::{self, Ask as _, Durability, Sought, Store},
    words::{AttemptNo, RunNo, Seq, Slot},
};
use outlast_server::door::Seen;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::sync::mpsc;

use crate::program::say::say;

/// Session of a CLI agent, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub id: String,
    /// Whether resuming the session has failed, so that no attempt resumes it again.
    #[serde(default)]
    pub spoiled: bool,
    /// Directory that the agent worked in when its program last named the session's files; `None` if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
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
    newest(store, run, key)
}

/// Returns the session that the agent of a fork's origin had at the fork's point; `None` if it had none. `run`: the fork.
pub fn inherited(
    store: &dyn Store,
    run: RunNo,
    key: &str,
    origin: Origin,
) -> Result<Option<Session>, store::Error> {
    let upto = |upto| Sought { upto, ..Sought::done(Kind::Checkpoint, key) };
    if let Some(known) = newest_of(store, run, &upto(origin.seq))? {
        return Ok(Some(known));
    }
    // An id that the program chooses is kept beside the first request that names it, and so may stand behind the point.
    let mut first: Option<Entry> = None;
    let older = |first: &Option<Entry>| Seq(first.as_ref().map_or(i64::MAX, |entry| entry.seq.0 - 1));
    while let Some(entry) = store.newest(origin.run, &upto(older(&first)))? {
        first = Some(entry);
    }
    let (Some(first), Some(point)) = (first, store.entry(origin.run, origin.seq)?) else { return Ok(None) };
    if point.kind != Kind::Call || point.attempt != first.attempt {
        return Ok(None);
    }
    newest_of(store, origin.run, &upto(first.seq))
}

/// Returns the JSON value of a run's newest checkpoint of this name; `None` if there is none. Errors: those of the store;
/// `Corrupt` if the value cannot be read.
pub(super) fn newest<T: DeserializeOwned>(
    store: &dyn Store,
    run: RunNo,
    key: &str,
) -> Result<Option<T>, store::Error> {
    newest_of(store, run, &Sought::done(Kind::Checkpoint, key))
}

fn newest_of<T: DeserializeOwned>(
    store: &dyn Store,
    run: RunNo,
    sought: &Sought,
) -> Result<Option<T>, store::Error> {
    let Some(entry) = store.newest(run, sought)? else { return Ok(None) };
    let corrupt =
        |e: &dyn std::fmt::Display| store::Error::Corrupt { what: format!("checkpoint {}: {e}", sought.key) };
    let Some(kept) = store.payload(run, entry.seq, Role::Value)? else { return Ok(None) };
    let bytes = kept.decode().map_err(|e| corrupt(&e))?;
    serde_json::from_slice(&bytes).map(Some).map_err(|e| corrupt(&e))
}

/// Returns the checkpoint that stores the session. The caller commits it synced before an agent with this id starts.
pub fn keep(actor: Actor, key: Name, session: &Session) -> Checkpoint {
    checkpoint(actor, key, session)
}

/// Returns the checkpoint that stores a value as JSON.
pub(super) fn checkpoint(actor: Actor, name: Name, value: &impl Serialize) -> Checkpoint {
    let value = Payload::encode(&serde_json::to_vec(value).unwrap_or_default());
    Checkpoint { actor, slot: Slot::DRIVER, name, value }
}

/// Formats 16 random bytes as a UUID, version 4 of RFC 9562.
pub fn uuid(mut random: [u8; 16]) -> String {
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    let hex: String = random.iter().map(|b| format!("{b:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Observer of the proxy that records the first session id of each agent. Sessions that an agent's own tools begin
/// later are not the agent's.
#[derive(Clone)]
pub struct Capture(mpsc::UnboundedSender<Named>);

#[derive(Debug, PartialEq, Eq, Hash, Clone)]
struct Named {
    run: RunNo,
    attempt: AttemptNo,
    agent: Option<String>,
    id: String,
}

impl Capture {
    /// Starts the task that records session ids. Must be called inside the runtime. The task ends when the last clone
    /// of the `Capture` is dropped.
    pub fn start(store: Arc<dyn Store>) -> Capture {
        let (sender, mut named) = mpsc::unbounded_channel::<Named>();
        tokio::spawn(async move {
            let mut known = HashSet::new();
            while let Some(named) = named.recv().await {
                if !known.insert((named.run, named.attempt, named.agent.clone())) {
                    continue;
                }
                if let Err(e) = keep_named(store.as_ref(), &named).await {
                    known.remove(&(named.run, named.attempt, named.agent.clone()));
                    say(&format!("the session {} could not be kept: {e}", named.id));
                }
            }
        });
        Capture(sender)
    }

    /// Records a session id that the agent of the run's own command has printed. Durable when it returns; a failure is
    /// only printed. Blocks: not for async code.
    pub fn read(store: &dyn Store, run: RunNo, attempt: AttemptNo, id: &str) {
        let named = Named { run, attempt, agent: None, id: id.to_owned() };
        let kept = prepared(store, &named).and_then(|keep| match keep {
            Some(keep) => store.run_verb(keep, Durability::Synced).map(drop),
            None => Ok(()),
        });
        if let Err(e) = kept {
            say(&format!("the session {id} could not be kept: {e}"));
        }
    }

    pub fn saw(&self, seen: &Seen) {
        if let Seen::Session { run, attempt, id, agent } = seen {
            let named = Named { run: *run, attempt: *attempt, agent: agent.clone(), id: id.clone() };
            // At the very end nobody receives, and no session is resumed.
            let _ = self.0.send(named);
        }
    }
}

async fn keep_named(store: &dyn Store, named: &Named) -> Result<(), store::Error> {
    if let Some(keep) = prepared(store, named)? {
        store.ask(keep, Durability::Synced).await?;
    }
    Ok(())
}

/// Prepares the checkpoint that stores an agent's session; `None` if another session is stored already.
fn prepared(store: &dyn Store, named: &Named) -> Result<Option<Checkpoint>, store::Error> {
    let attempts = store.attempts(named.run)?;
    let Some(attempt) = attempts.iter().find(|a| a.no == named.attempt) else { return Ok(None) };
    let key = key(named.agent.as_deref(), attempt.iteration);
    let kept = find(store, named.run, &key)?;
    if kept.is_some_and(|kept| !kept.spoiled || kept.id == named.id) {
        return Ok(None);
    }
    let Some(instance) = attempt.instance else { return Ok(None) };
    let actor = Actor { run: named.run, attempt: named.attempt, instance };
    // An agent in a script works where the script has started it.
    let command = match named.agent {
        Some(_) => None,
        None => store.run(named.run)?.and_then(|view| view.spec.command),
    };
    let directory = command.map(|command| command.directory);
    let session = Session { id: named.id.clone(), spoiled: false, directory };
    Ok(Some(keep(actor, key, &session)))
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
