//! Answers that the upstream keeps and later requests name by id: only those of the run's own journal.
//!
//! Our key can read every answer of the account; a run must not go on from another's.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use outlast_core::{
    id::{RunNo, Seq},
    journal::{Entry, Kind, Role, State},
};

use super::{host::Host, record::Answer, refuse::Refusal};
use crate::dialect::{Dialect, HeaderFacts, Request, Route, route};

/// How many entries are read at a time.
const PAGE: usize = 256;

/// The ids that a run's journal is known to hold.
#[derive(Default)]
pub struct Kept {
    ids: HashSet<String>,
    /// Up to here the journal was read. Behind it are calls that were in flight at the time.
    read_to: Seq,
}

impl Kept {
    pub fn add(&mut self, ids: &[String]) {
        self.ids.extend(ids.iter().cloned());
    }

    fn lacks<'i>(&self, ids: &'i [String]) -> Option<&'i String> {
        ids.iter().find(|id| !self.ids.contains(*id))
    }
}

/// Refuses the first of `ids` that no answer in the run's journal has.
///
/// What this process settled it knows; for the rest it reads the journal, and no part of that twice but for
/// what stands behind a call in flight. Under `record = "digests"` answers are not in the journal: then only
/// this process's are known.
/// Errors: `foreign_response`, 403; the store's.
pub async fn check(host: &Arc<Host>, run: RunNo, ids: Vec<String>) -> Result<(), Refusal> {
    if host.memory(run).lock().kept.lacks(&ids).is_none() {
        return Ok(());
    }
    let host = host.clone();
    let reading = tokio::task::spawn_blocking(move || {
        read_on(&host, run)?;
        match host.memory(run).lock().kept.lacks(&ids) {
            None => Ok(()),
            Some(id) => {
                let id: String = id.chars().take(100).collect();
                let text =
                    format!("{id:?} is not the id of an answer in this run's journal; nothing was sent");
                Err(Refusal::new(403, "foreign_response", text))
            }
        }
    });
    reading.await.map_err(|e| Refusal::new(500, "internal", format!("the journal was not read: {e}")))?
}

/// Reads what the journal holds beyond what was read before.
fn read_on(host: &Host, run: RunNo) -> Result<(), Refusal> {
    let mut after = host.memory(run).lock().kept.read_to;
    let mut all_closed = true;
    loop {
        let page = host.store.entries(run, after, PAGE)?;
        let Some(last) = page.last().map(|e| e.seq) else { return Ok(()) };
        for entry in &page {
            let ids = ids_of(host, entry)?;
            all_closed &= entry.kind != Kind::Call || entry.state != State::Open;
            let memory = host.memory(run);
            let mut memory = memory.lock();
            memory.kept.add(&ids);
            if all_closed {
                memory.kept.read_to = memory.kept.read_to.max(entry.seq);
            }
        }
        after = last;
    }
}

fn ids_of(host: &Host, entry: &Entry) -> Result<Vec<String>, Refusal> {
    let Some(call) = entry.call.as_ref().filter(|_| entry.replayable) else { return Ok(Vec::new()) };
    let Route::Metered(dialect) = route("POST", &call.path, HeaderFacts::default()) else {
        return Ok(Vec::new());
    };
    if !dialect.keeps_answers() {
        return Ok(Vec::new());
    }
    let Some(payload) = host.store.payload(entry.run, entry.seq, Role::Answer)? else {
        return Ok(Vec::new());
    };
    let damaged = |e: String| {
        let text = format!("the store is damaged: the answer of entry {}: {e}", entry.seq);
        Refusal::new(500, "store_corrupt", text)
    };
    let bytes = payload.decode().map_err(|e| damaged(e.to_string()))?;
    let answer = Answer::from_bytes(bytes).map_err(|e| damaged(e.to_string()))?;
    Ok(read(dialect, call.stream, answer.frames.concat().into()))
}

fn read(dialect: &dyn Dialect, stream: bool, body: Bytes) -> Vec<String> {
    if !stream {
        return dialect.read_json(&body).kept;
    }
    let mut answer = dialect.read_stream(&Request::default());
    answer.push(body);
    answer.finish();
    answer.outcome().kept.clone()
}
