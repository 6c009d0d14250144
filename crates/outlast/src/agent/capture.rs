//! Sessions that programs choose themselves: kept as soon as a request names one.

use std::{collections::HashSet, sync::Arc};

use outlast_core::{
    id::{AttemptNo, RunNo},
    op::{Actor, Durability},
    store::{self, Ask as _, Store},
};
use outlast_server::proxy::Seen;
use tokio::sync::mpsc;

use super::session::{self, Session};
use crate::say::say;

/// Takes what the proxy sees, and keeps the first session of each agent: what an agent's own tools begin
/// later is theirs.
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
    /// Must be called inside the runtime; it ends with the last clone.
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

    pub fn saw(&self, seen: &Seen) {
        if let Seen::Session { run, attempt, id, agent } = seen {
            let named = Named { run: *run, attempt: *attempt, agent: agent.clone(), id: id.clone() };
            // At the very end nobody listens, and nobody goes on.
            let _ = self.0.send(named);
        }
    }
}

async fn keep(store: &dyn Store, named: &Named) -> Result<(), store::Error> {
    let attempts = store.attempts(named.run)?;
    let Some(attempt) = attempts.iter().find(|a| a.no == named.attempt) else { return Ok(()) };
    let key = session::key(named.agent.as_deref(), attempt.iteration);
    let kept = session::find(store, named.run, &key)?;
    if kept.is_some_and(|kept| !kept.spoiled || kept.id == named.id) {
        return Ok(());
    }
    let Some(instance) = attempt.instance else { return Ok(()) };
    let actor = Actor { run: named.run, attempt: named.attempt, instance };
    let session = Session { id: named.id.clone(), spoiled: false };
    store.ask(session::keep(actor, key, &session), Durability::Synced).await?;
    Ok(())
}
