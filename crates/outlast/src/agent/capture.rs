//! Captures session ids that programs choose themselves: kept as soon as a request names one.

use std::{collections::HashSet, sync::Arc};

use outlast_core::{
    engine::{actor::Actor, checkpoint::Checkpoint},
    store::{self, Ask as _, Durability, Store},
    words::id::{AttemptNo, RunNo},
};
use outlast_server::door::Seen;
use tokio::sync::mpsc;

use super::session::{self, Session};
use crate::program::say::say;

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
                if let Err(e) = keep(store.as_ref(), &named).await {
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

async fn keep(store: &dyn Store, named: &Named) -> Result<(), store::Error> {
    if let Some(keep) = prepared(store, named)? {
        store.ask(keep, Durability::Synced).await?;
    }
    Ok(())
}

/// Prepares the checkpoint that stores an agent's session; `None` if another session is stored already.
fn prepared(store: &dyn Store, named: &Named) -> Result<Option<Checkpoint>, store::Error> {
    let attempts = store.attempts(named.run)?;
    let Some(attempt) = attempts.iter().find(|a| a.no == named.attempt) else { return Ok(None) };
    let key = session::key(named.agent.as_deref(), attempt.iteration);
    let kept = session::find(store, named.run, &key)?;
    if kept.is_some_and(|kept| !kept.spoiled || kept.id == named.id) {
        return Ok(None);
    }
    let Some(instance) = attempt.instance else { return Ok(None) };
    let actor = Actor { run: named.run, attempt: named.attempt, instance };
    let session = Session { id: named.id.clone(), spoiled: false };
    Ok(Some(session::keep(actor, key, &session)))
}
