//! Sessions: a program without the engine in it, such as one in Node, works in a run through this server.
//!
//! A session is an instance of its own, with its heartbeat, attempt and openings, so that all rules for processes hold for
//! it: one driver, fences, closings by who opened. It lives while its client reads the answer of the request that opened
//! it. When that connection is gone, the client's process is taken for dead.

mod deed;
mod opening;

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use outlast_core::{
    engine::Actor,
    store::{self, Ask as _, Durability},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{sync::mpsc, task::AbortHandle, time::Instant};

use super::{
    error::Error,
    request::{Answered, ApiRequest, json, of_type},
};
use crate::{
    node::{Beat, HEARTBEAT, Node, Word, declare_dead},
    proxy::host::Host,
    wire::{
        body::{AnswerBody, Piece},
        refuse::Refusal,
    },
    work::{Deed, Hand, How},
};

/// Media type of the answer that a session lives by: a line of JSON for each thing that is told.
const LINES: &str = "application/x-ndjson";

/// Number of lines buffered for the client.
const AHEAD: usize = 4;

/// Time after which a session that has nothing to tell sends an empty line, so that a broken connection is noticed.
const QUIET: Duration = Duration::from_secs(10);

/// Sessions of this process, by the secret that their clients were given.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<String, Arc<Session>>>);

/// A program at work in a run.
pub(super) struct Session {
    hand: Arc<Hand>,
    /// Attempt that the program works in; `None` if it replays a completed run.
    work: Option<Work>,
}

/// Attempt of a session, and the instance that works in it.
struct Work {
    node: Arc<Node>,
    beat: Arc<Beat>,
    beating: AbortHandle,
    actor: Actor,
    /// Whether the session claimed the attempt; false for a supervisor's, which it must not end.
    is_driver: bool,
}

impl Sessions {
    fn find(&self, key: &str) -> Result<Arc<Session>, Error> {
        self.0.lock().get(key).cloned().ok_or(Error::UnknownSession)
    }
}

/// Opens a run for the caller. The answer's first line tells the session; it goes on until the session is over.
pub(super) async fn open(asked: ApiRequest) -> Answered<Error> {
    if asked.host.is_draining() {
        return Err(Refusal::Draining.into());
    }
    let wanted = asked.json()?;
    let (host, caller, by) = (asked.host.clone(), asked.caller.clone(), asked.actor());
    let fresh = asked.api.desk.name_a_run();
    let opening = tokio::task::spawn_blocking(move || opening::open(&host, &caller, &by, fresh, wanted));
    let (session, mut first) = opening.await.map_err(|_| store::Error::Closed)??;
    let session = Arc::new(session);
    let chance: [u8; 16] = outlast_core::words::clock::random(asked.host.node.entropy());
    let key: String = chance.iter().map(|byte| format!("{byte:02x}")).collect();
    first["session"] = json!(key);
    asked.api.sessions.0.lock().insert(key.clone(), session.clone());
    let (to, pieces) = mpsc::channel(AHEAD);
    let attending =
        Attending { host: asked.host.clone(), sessions: asked.api.sessions.clone(), key, session };
    tokio::spawn(attending.attend(format!("{first}\n"), to));
    Ok(of_type(Bytes::new(), LINES).map(|_| AnswerBody::stream(pieces)))
}

/// Does one deed in a session, and answers with what came of it.
pub(super) async fn act(asked: ApiRequest) -> Answered<Error> {
    let session = asked.api.sessions.find(asked.name())?;
    let deed: Deed = asked.json()?;
    if let Deed::End { how } = deed {
        asked.api.sessions.0.lock().remove(asked.name());
        let status = session.end(&asked.host, how).await?;
        return json(&json!({ "status": status }));
    }
    let (run, done) = (session.hand.run, session.carry_out(&asked, deed).await);
    asked.working(run, done).await
}

/// Task that a session lives by.
struct Attending {
    host: Arc<Host>,
    sessions: Arc<Sessions>,
    key: String,
    session: Arc<Session>,
}

impl Attending {
    /// Tells the client what it should do, until its connection is gone or it has ended the session.
    async fn attend(self, first: String, to: mpsc::Sender<Piece>) {
        let (mut line, mut told, mut said) = (first, Word::GoOn, Instant::now());
        while self.sessions.find(&self.key).is_ok() {
            if said.elapsed() >= QUIET && line.is_empty() {
                line.push('\n');
            }
            if !line.is_empty() {
                said = Instant::now();
                if to.send(Piece::Frame(Bytes::from(std::mem::take(&mut line)))).await.is_err() {
                    break;
                }
            }
            tokio::select! {
                () = to.closed() => break,
                () = tokio::time::sleep(HEARTBEAT / 4) => {}
            }
            let word = self.session.work.as_ref().map_or(Word::GoOn, Work::word);
            if word != told {
                told = word;
                line = format!("{}\n", json!({ "word": word.name() }));
            }
        }
        let _ = to.send(Piece::End).await;
        let ended = self.sessions.0.lock().remove(&self.key);
        if ended.is_some() {
            self.session.die(self.host.store.clone()).await;
        }
    }
}

impl Work {
    fn word(&self) -> Word {
        self.beat.word(&self.node, self.actor.run, self.actor.attempt)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.beating.abort();
    }
}

impl Session {
    /// Ends the attempt as the client says, and deregisters the instance. Returns the run's status.
    async fn end(&self, host: &Host, how: How) -> Result<&'static str, Error> {
        let Some(work) = &self.work else { return Ok("completed") };
        let active_ms = work.beat.close(&work.node, work.actor.run, work.actor.attempt);
        let mut status = "running";
        let mut ended = Ok(());
        if work.is_driver {
            match host.store.ask(how.end(work.actor, active_ms, None), Durability::Synced).await {
                Ok(after) => status = after.name(),
                Err(e) => ended = Err(e),
            }
        }
        let node = work.node.clone();
        work.beating.abort();
        let left = tokio::task::spawn_blocking(move || node.leave()).await;
        host.wake();
        ended.and(left.map_err(|_| store::Error::Closed)?)?;
        Ok(status)
    }

    /// Declares the instance dead: its client is gone without a word.
    async fn die(&self, store: Arc<dyn store::Store>) {
        let Some(work) = &self.work else { return };
        work.beating.abort();
        let (node, instance) = (work.node.clone(), work.actor.instance);
        let dead = tokio::task::spawn_blocking(move || {
            declare_dead(&*store, instance, false)?;
            // It has another number if it was declared dead before.
            node.leave()
        });
        if let Ok(Err(e)) = dead.await {
            tracing::warn!(run = %self.hand.id, error = %e, "a session whose client is gone is not declared dead yet");
        }
    }
}
