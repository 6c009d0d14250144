//! Oracle of recorded work: results belong to the step that recorded them, are there once acknowledged, and happen no
//! more often than declared; shared keys change one version at a time.

use std::{cell::RefCell, collections::BTreeMap, sync::Arc};

use outlast_core::{
    journal::{Entry, Kind, Payload, Role, State},
    memory::{MemoryStore, Tables},
    state::{Committed, Name},
    words::{RunNo, Seq},
};

type Key = (RunNo, String);

/// Work of the workers, as they saw it.
#[derive(Default)]
pub struct Work {
    found: RefCell<Option<String>>,
    /// Acknowledged value of each step or item.
    recorded: BTreeMap<Key, String>,
    /// Number of times that a step may still begin to run.
    may_run: BTreeMap<Key, u32>,
    /// Acknowledged versions of the shared keys, with the value of each.
    versions: BTreeMap<(String, i64), String>,
}

impl Work {
    pub fn violation(&self) -> Option<String> {
        self.found.borrow().clone()
    }

    /// Notes that the function of an `at_most_once` step runs.
    pub fn runs_once(&mut self, run: RunNo, key: &str) {
        let left = self.may_run.entry((run, key.to_owned())).or_insert(1);
        match left.checked_sub(1) {
            Some(fewer) => *left = fewer,
            None => self.find(format!("step {key} of run {run} may happen once, and ran again unasked")),
        }
    }

    /// Notes that a person let a step in doubt run again.
    pub fn may_run_again(&mut self, run: RunNo, key: &str) {
        *self.may_run.entry((run, key.to_owned())).or_default() += 1;
    }

    pub fn tried(&self, run: RunNo, key: &str, before: i64, try_no: i64) {
        // A database that starts anew may have lost a try that was not synced: it is begun again.
        if try_no > before + 1 {
            self.find(format!("step {key} of run {run} went from try {before} to try {try_no}"));
        }
    }

    /// Reports that a step's opening was acknowledged and is not in the store, although nothing failed.
    pub fn opening_lost(&self, run: RunNo, key: &str) {
        self.find(format!("step {key} of run {run} was begun, and its opening is lost without a fault"));
    }

    /// Notes that a result was acknowledged.
    pub fn recorded(&mut self, run: RunNo, key: &str, value: &str) {
        self.recorded.insert((run, key.to_owned()), value.to_owned());
    }

    /// Checks a result that a worker finds recorded.
    pub fn found(&self, disk: &MemoryStore, run: RunNo, key: &str, seq: Seq) {
        disk.inspect(|t, _| match value(t, run, seq) {
            Some(value) if is_of(&value, key) => {}
            value => self.find(format!("step {key} of run {run} found the result {value:?} in entry {seq}")),
        });
    }

    /// Checks an acknowledged swap: it made the version after the one that it expected, and no other swap made the same
    /// version.
    pub fn swapped(&mut self, key: &str, expected: i64, committed: &Committed, value: Option<&str>) {
        let version = expected + 1;
        if committed.versions != [version] {
            let had = &committed.versions;
            return self.find(format!("a swap of {key} at version {expected} made {had:?}"));
        }
        let value = value.unwrap_or_default().to_owned();
        if let Some(other) = self.versions.insert((key.to_owned(), version), value.clone()) {
            self.find(format!("version {version} of {key} was given to {other} and to {value}"));
        }
    }

    /// Checks what is on disk: each result belongs to its step, and what was acknowledged is there.
    pub fn check(&self, synced: &Tables, before: &BTreeMap<(RunNo, Seq), State>, t: &Tables) {
        let is_result = |e: &Entry| matches!(e.kind, Kind::Step | Kind::Item) && e.state == State::Done;
        for (at, e) in &t.entries {
            if !is_result(e) || before.get(at) == Some(&State::Done) {
                continue;
            }
            let key = e.key.as_deref().unwrap_or_default();
            match value(t, e.run, e.seq) {
                Some(value) if is_of(&value, key) => {}
                Some(value) => self.find(format!("entry {at:?} is step {key}, and its result is {value:?}")),
                None => self.find(format!("entry {at:?} is step {key}, and its result cannot be read")),
            }
        }
        let durable: BTreeMap<(RunNo, &str), Seq> = synced
            .entries
            .values()
            .filter(|e| is_result(e))
            .map(|e| ((e.run, e.key.as_deref().unwrap_or_default()), e.seq))
            .collect();
        for (run, key) in self.recorded.keys() {
            if !durable.contains_key(&(*run, key.as_str())) {
                self.find(format!(
                    "the result of step {key} of run {run} was acknowledged, and is not on disk"
                ));
            }
        }
        for (key, version) in self.versions.keys() {
            let is_there =
                |v: &(&Arc<Name>, i64)| v.0.namespace == "shared" && v.0.key == *key && v.1 == *version;
            if !synced.state.versions.keys().any(|(name, no)| is_there(&(name, *no))) {
                self.find(format!("version {version} of {key} was acknowledged, and is not on disk"));
            }
        }
    }

    fn find(&self, what: String) {
        self.found.borrow_mut().get_or_insert(what);
    }
}

fn value(t: &Tables, run: RunNo, seq: Seq) -> Option<String> {
    let parts = t.payloads.range((run, seq, Role::Value, 0)..=(run, seq, Role::Value, u32::MAX));
    let payload = Payload::join(parts.map(|(_, part)| part.clone()).collect())?;
    Some(String::from_utf8_lossy(&payload.decode().ok()?).into_owned())
}

/// Returns whether a value was made for the step or item of this key.
fn is_of(value: &str, key: &str) -> bool {
    value.split_once('#').is_some_and(|(of, _)| of == key)
}
