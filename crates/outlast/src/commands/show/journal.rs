//! Sums and newest entries of a run's journal, for its story: the entries are read once, and no list of them is held.

use std::collections::VecDeque;

use super::{
    super::{evidence::Evidence, prelude::*, resolve},
    ENTRIES,
    money::{BusyWaiting, Calls},
};
use crate::{
    program::{resume_tax::Restarts, untaken::Untaken},
    render::did::Did,
};

/// Sums over a run's entries, and the few entries that are shown.
pub struct Journal {
    pub count: usize,
    /// Newest entries, oldest first.
    pub newest: Vec<Entry>,
    /// Newest entries that are the run's work, oldest first: copies of the agent's session are many, and no work of it.
    pub newest_work: Vec<Entry>,
    pub did: Did,
    pub calls: Calls,
    pub waiting: BusyWaiting,
    /// Recorded answers that the newest attempt has not taken yet.
    pub untaken: Untaken,
    pub restarts: Restarts,
    /// Newest tool calls, oldest first.
    pub tools: VecDeque<Entry>,
    /// Names and entries of tool calls in doubt, oldest first.
    pub doubted: Vec<(String, Seq)>,
    /// Provider's last words to the newest attempt, if they are an error that the attempt may have died of.
    pub refusal: Option<String>,
}

impl Journal {
    /// Reads the entries of a run. Each attempt's evidence, which is in the order of `attempts`, gets the entries of the
    /// attempt.
    ///
    /// Errors: those of the store.
    pub fn read(
        store: &dyn Store,
        run: &Run,
        attempts: &[Attempt],
        evidence: &mut [Evidence],
    ) -> Result<Journal, store::Error> {
        let is_work = |e: &Result<Entry, _>| e.as_ref().map_or(true, |e| !e.is_bookkeeping());
        let newest = || entries::each_back(store, run.no, run.next_seq);
        let mut journal = Journal {
            count: 0,
            newest: newest().take(ENTRIES).collect::<Result<_, _>>()?,
            newest_work: newest()
                .filter(is_work)
                .take(ENTRIES)
                .map(|entry| gist::as_told(store, entry?))
                .collect::<Result<_, _>>()?,
            did: Did::of(&[], attempts.last()),
            calls: Calls::default(),
            waiting: BusyWaiting::default(),
            untaken: Untaken::default(),
            restarts: Restarts::of(attempts.iter().map(|attempt| attempt.no)),
            tools: VecDeque::new(),
            doubted: Vec::new(),
            refusal: None,
        };
        journal.newest.reverse();
        journal.newest_work.reverse();
        for entry in entries::each(store, run.no) {
            let entry = entry?;
            journal.add(attempts.last(), &entry);
            if resolve::is_doubted(store, &entry)? {
                journal.doubted.push((entry.key.clone().unwrap_or_default(), entry.seq));
            }
            if let Ok(at) = attempts.binary_search_by_key(&entry.attempt, |a| a.no) {
                evidence[at].add(&attempts[at], &entry);
            }
        }
        for entry in evidence.iter_mut().flat_map(|evidence| &mut evidence.open) {
            *entry = gist::as_told(store, entry.clone())?;
            // People are told a tool call by its name, on each face the same.
            if let Some(name) = gist::tool_name(store, entry)? {
                entry.key = Some(name);
            }
        }
        Ok(journal)
    }

    fn add(&mut self, newest: Option<&Attempt>, entry: &Entry) {
        self.count += 1;
        self.did.add(entry);
        self.calls.add(entry);
        self.waiting.add(entry);
        self.restarts.add(entry);
        if let Some(newest) = newest {
            self.untaken.add(newest, entry);
        }
        match entry.kind {
            Kind::Call if newest.is_some_and(|newest| entry.attempt == newest.no) => {
                self.refusal = refusal(entry)
            }
            Kind::Tool => self.tools.push_back(entry.clone()),
            _ => {}
        }
        if self.tools.len() > ENTRIES {
            self.tools.pop_front();
        }
    }
}

/// Returns the error with which a provider answered a call, in the provider's own words; `None` if the call has another
/// end.
fn refusal(entry: &Entry) -> Option<String> {
    let call = entry.call.as_ref()?;
    let status = call.http_status.filter(|status| *status >= 400)?;
    // What the provider answered is not kept, but its message.
    let words = call.error.as_deref().map(str::trim).filter(|words| !words.is_empty()).unwrap_or("no words");
    Some(format!("its provider said last, in entry {}: {status}, {words}", entry.seq))
}
