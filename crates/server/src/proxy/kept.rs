//! Check on ids of answers that the upstream stores: a request may name only those in its own run's journal.
//!
//! The configured key can read every answer of the account, but a run must not continue from another run's answer, unless
//! a person has allowed that.

use std::sync::Arc;

use bytes::Bytes;
use outlast_core::{
    journal::{Entry, Kind, State},
    store::Store,
    words::{RunNo, Seq},
};

use super::{
    host::Host,
    record::Answer,
    remembered::{AnswerIds, Kept, RunMemory},
};
use crate::{
    dialect::{Dialect, HeaderFacts, Request, Route, route},
    wire::refuse::Refusal,
};

/// Number of journal entries read at a time.
const PAGE: i64 = 32;

/// Checks that every one of `ids` belongs to an answer in the run's journal.
///
/// Ids of calls that this process settled are in memory. For others it reads the journal, newest first, until all are
/// found: an agent mostly continues from its last answer. Only calls in flight are read twice. Under `record =
/// "digests"` the journal has no answers, so only ids that this process settled are known.
///
/// Errors: `foreign_response`, 403, for the first id without an answer; those of the store.
pub async fn check(host: &Host, run: RunNo, ids: Vec<String>) -> Result<(), Refusal> {
    let (store, memory) = (host.store.clone(), host.memories.of(run));
    if host.config.foreign_responses || memory.lock().kept.lacks(&ids).is_none() {
        return Ok(());
    }
    let reading = tokio::task::spawn_blocking(move || {
        let journal = Journal { store: store.as_ref(), run, memory, ids: &ids };
        match journal.read_until_found()? {
            None => Ok(()),
            Some(id) => {
                let id: String = id.chars().take(100).collect();
                Err(Refusal::ForeignResponse { id })
            }
        }
    });
    reading.await.map_err(|e| Refusal::Internal(format!("the journal was not read: {e}")))?
}

/// Journal of a run, and the ids of stored answers that are searched in it.
struct Journal<'a> {
    store: &'a dyn Store,
    run: RunNo,
    memory: Arc<RunMemory>,
    ids: &'a [String],
}

impl Journal<'_> {
    /// Reads entries until all ids are found. Returns the first id that is not in the journal; `None` if all
    /// are.
    fn read_until_found(&self) -> Result<Option<&String>, Refusal> {
        let store = self.store;
        let Some(view) = store.run(self.run)? else { return Ok(self.ids.first()) };
        let newest = Seq(view.run.next_seq.0 - 1);
        let ((mut low, mut high), open) =
            self.kept(|kept| (*kept.read.get_or_insert((newest, newest)), kept.open.clone()));
        for seq in open {
            if let Some(entry) = store.entry(self.run, seq)? {
                self.read(&entry)?;
            }
        }
        while high < newest {
            let upto = Seq((high.0 + PAGE).min(newest.0));
            self.read_page(high, upto)?;
            high = upto;
        }
        while low.0 > 0 && self.lacks().is_some() {
            let above = Seq((low.0 - PAGE).max(0));
            self.read_page(above, low)?;
            low = above;
        }
        Ok(self.lacks())
    }

    fn lacks(&self) -> Option<&String> {
        self.kept(|kept| kept.lacks(self.ids))
    }

    fn kept<T>(&self, look: impl FnOnce(&mut Kept) -> T) -> T {
        look(&mut self.memory.lock().kept)
    }

    /// Reads the entries after `above`, up to and including `upto`.
    fn read_page(&self, above: Seq, upto: Seq) -> Result<(), Refusal> {
        let limit = usize::try_from(upto.0 - above.0).unwrap_or_default();
        for entry in self.store.entries(self.run, above, limit)? {
            if entry.seq <= upto {
                self.read(&entry)?;
            }
        }
        self.kept(|kept| kept.has_read(above, upto));
        Ok(())
    }

    fn read(&self, entry: &Entry) -> Result<(), Refusal> {
        let told = match (entry.kind, entry.state) {
            (Kind::Call, State::Open) => AnswerIds::NotYet,
            (Kind::Call, _) => AnswerIds::Ids(ids_of(self.store, entry)?),
            _ => return Ok(()),
        };
        self.kept(|kept| kept.note(entry.seq, told));
        Ok(())
    }
}

fn ids_of(store: &dyn Store, entry: &Entry) -> Result<Vec<String>, Refusal> {
    let Some(call) = entry.call.as_ref().filter(|_| entry.replayable) else { return Ok(Vec::new()) };
    let Route::Metered(dialect) = route("POST", &call.path, HeaderFacts::default()) else {
        return Ok(Vec::new());
    };
    if !dialect.keeps_answers {
        return Ok(Vec::new());
    }
    let answer = Answer::of(store, entry.run, entry.seq)?;
    Ok(answer.map(|answer| read(dialect, call.stream, answer.body)).unwrap_or_default())
}

fn read(dialect: &Dialect, stream: bool, body: Bytes) -> Vec<String> {
    if !stream {
        return dialect.read_json(&body).kept;
    }
    let mut answer = (dialect.read_stream)(&Request::default());
    answer.push(body);
    answer.finish();
    answer.outcome().kept.clone()
}
