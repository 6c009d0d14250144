//! Oracles of the workers. Of recorded work: results belong to the step that recorded them, are there once acknowledged, and
//! happen no more often than declared; shared keys change one version at a time. Of tool calls: each is on disk before it is
//! sent, none is made twice unless it may be, an answer is given again and not asked for again, and a server sees one key
//! for one call.

use std::{collections::BTreeMap, sync::Arc};

use outlast_core::state::Committed;

use super::Violation;
use crate::{ToolCall, prelude::*};

type Key = (RunNo, String);

/// Work of the workers, as they saw it.
#[derive(Default)]
pub struct Work {
    pub(super) found: Violation,
    /// Acknowledged value of each step or item.
    recorded: BTreeMap<Key, String>,
    /// Number of times that a step may still begin to run.
    may_run: BTreeMap<Key, u32>,
    /// Acknowledged versions of the shared keys, with the value of each.
    versions: BTreeMap<(String, i64), String>,
}

impl Work {
    /// Notes that the function of an `at_most_once` step runs.
    pub fn runs_once(&mut self, run: RunNo, key: &str) {
        let left = self.may_run.entry((run, key.to_owned())).or_insert(1);
        match left.checked_sub(1) {
            Some(fewer) => *left = fewer,
            None => {
                self.found.find(format!("step {key} of run {run} may happen once, and ran again unasked"))
            }
        }
    }

    /// Notes that a person let a step in doubt run again.
    pub fn may_run_again(&mut self, run: RunNo, key: &str) {
        *self.may_run.entry((run, key.to_owned())).or_default() += 1;
    }

    pub fn tried(&self, run: RunNo, key: &str, before: i64, try_no: i64) {
        // A database that starts anew may have lost a try that was not synced: it is begun again.
        if try_no > before + 1 {
            self.found.find(format!("step {key} of run {run} went from try {before} to try {try_no}"));
        }
    }

    /// Reports that a step's opening was acknowledged and is not in the store, although nothing failed.
    pub fn opening_lost(&self, run: RunNo, key: &str) {
        self.found
            .find(format!("step {key} of run {run} was begun, and its opening is lost without a fault"));
    }

    /// Notes that a result was acknowledged.
    pub fn recorded(&mut self, run: RunNo, key: &str, value: &str) {
        self.recorded.insert((run, key.to_owned()), value.to_owned());
    }

    /// Checks a result that a worker finds recorded.
    pub fn found(&self, disk: &MemoryStore, run: RunNo, key: &str, seq: Seq) {
        disk.inspect(|t, _| match value(t, run, seq) {
            Some(value) if is_of(&value, key) => {}
            value => {
                self.found.find(format!("step {key} of run {run} found the result {value:?} in entry {seq}"))
            }
        });
    }

    /// Checks an acknowledged swap: it made the version after the one that it expected, and no other swap made the same
    /// version.
    pub fn swapped(&mut self, key: &str, expected: i64, committed: &Committed, value: Option<&str>) {
        let version = expected + 1;
        if committed.versions != [version] {
            let had = &committed.versions;
            return self.found.find(format!("a swap of {key} at version {expected} made {had:?}"));
        }
        let value = value.unwrap_or_default().to_owned();
        if let Some(other) = self.versions.insert((key.to_owned(), version), value.clone()) {
            self.found.find(format!("version {version} of {key} was given to {other} and to {value}"));
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
                Some(value) => {
                    self.found.find(format!("entry {at:?} is step {key}, and its result is {value:?}"))
                }
                None => self.found.find(format!("entry {at:?} is step {key}, and its result cannot be read")),
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
                self.found.find(format!(
                    "the result of step {key} of run {run} was acknowledged, and is not on disk"
                ));
            }
        }
        for (key, version) in self.versions.keys() {
            let is_there =
                |v: &(&Arc<Name>, i64)| v.0.namespace == "shared" && v.0.key == *key && v.1 == *version;
            if !synced.state.versions.keys().any(|(name, no)| is_there(&(name, *no))) {
                self.found.find(format!("version {version} of {key} was acknowledged, and is not on disk"));
            }
        }
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

/// Tool calls, as their clients and their server saw them.
#[derive(Default)]
pub struct Tools {
    pub(super) found: Violation,
    /// Number of times that the server got equal calls.
    sent: BTreeMap<(RunNo, String), usize>,
    /// Idempotency key of each call with an id.
    keys: BTreeMap<(RunNo, String), String>,
    /// Acknowledged answers of calls with an id.
    answers: BTreeMap<(RunNo, String), (Seq, String)>,
}

impl Tools {
    /// Notes that the server got the call of the entry `at`. `equal`: number of calls like it in one life's program.
    pub fn sent(&mut self, disk: &MemoryStore, at: (RunNo, Seq), call: &ToolCall, key: String, equal: usize) {
        let (run, seq) = at;
        let name = &call.arguments;
        let marked = |e: &Entry| e.tool.as_ref().is_some_and(|tool| tool.is_sent());
        if !disk.inspect(|_, synced| synced.entries.get(&at).is_some_and(marked)) {
            self.found.find(format!(
                "1: tool call {name} of run {run} was sent, and entry {seq} on disk does not say so"
            ));
        }
        let is_answered = call.id.as_ref().is_some_and(|id| self.answers.contains_key(&(run, id.clone())));
        if is_answered {
            self.found
                .find(format!("4: tool call {:?} of run {run} was answered, and was made again", call.id));
        }
        let count = self.sent.entry((run, name.clone())).or_default();
        *count += 1;
        if *count > equal && !call.repeatable {
            let count = *count;
            self.found.find(format!(
                "tool call {name} of run {run} was made {count} times, and its program has it {equal} times"
            ));
        }
        let Some(id) = call.id.clone() else { return };
        let first = self.keys.entry((run, id.clone())).or_insert_with(|| key.clone()).clone();
        if first != key {
            self.found.find(format!("tool call {id} of run {run} had the key {first}, and then {key}"));
        }
    }

    /// Notes that an answer was recorded and acknowledged.
    pub fn answered(&mut self, run: RunNo, call: &ToolCall, seq: Seq, value: String) {
        if let Some(id) = call.id.clone() {
            self.answers.insert((run, id), (seq, value));
        }
    }

    /// Checks an answer that a later life gets.
    pub fn replayed(&self, disk: &MemoryStore, run: RunNo, call: &ToolCall, seq: Seq) {
        let value = disk.inspect(|t, _| {
            let payload = t.payloads.get(&(run, seq, Role::Value, 0))?;
            Some(String::from_utf8_lossy(&payload.decode().ok()?).into_owned())
        });
        let is_its = |value: &str| value.split_once('#').is_some_and(|(of, _)| of == call.arguments);
        if !value.as_deref().is_some_and(is_its) {
            self.found.find(format!(
                "tool call {} of run {run} got the answer {value:?} of entry {seq}",
                call.arguments
            ));
        }
        let known = call.id.as_ref().and_then(|id| self.answers.get(&(run, id.clone())));
        if let Some((_, first)) = known.filter(|(_, first)| Some(first) != value.as_ref()) {
            self.found.find(format!(
                "tool call {:?} of run {run} had the answer {first}, and then {value:?}",
                call.id
            ));
        }
    }

    /// Checks that a call in doubt was not answered.
    pub fn doubted(&self, run: RunNo, call: &ToolCall) {
        let known = call.id.as_ref().and_then(|id| self.answers.get(&(run, id.clone())));
        if let Some((seq, _)) = known {
            let id = &call.id;
            self.found.find(format!("2: the answer to tool call {id:?} of run {run} in entry {seq} was acknowledged, and is in doubt"));
        }
    }
}
