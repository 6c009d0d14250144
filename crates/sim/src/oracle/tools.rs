//! Oracle of tool calls: each is on disk before it is sent, none is made twice unless it may be, an answer is given again
//! and not asked for again, and a server sees one key for one call.

use std::{cell::RefCell, collections::BTreeMap};

use outlast_core::{
    journal::{Entry, Role},
    memory::MemoryStore,
    words::{RunNo, Seq},
};

use crate::program::ToolCall;

/// Tool calls, as their clients and their server saw them.
#[derive(Default)]
pub struct Tools {
    found: RefCell<Option<String>>,
    /// Number of times that the server got equal calls.
    sent: BTreeMap<(RunNo, String), usize>,
    /// Idempotency key of each call with an id.
    keys: BTreeMap<(RunNo, String), String>,
    /// Acknowledged answers of calls with an id.
    answers: BTreeMap<(RunNo, String), (Seq, String)>,
}

impl Tools {
    pub fn violation(&self) -> Option<String> {
        self.found.borrow().clone()
    }

    /// Notes that the server got the call of the entry `at`. `equal`: number of calls like it in one life's program.
    pub fn sent(&mut self, disk: &MemoryStore, at: (RunNo, Seq), call: &ToolCall, key: String, equal: usize) {
        let (run, seq) = at;
        let name = &call.arguments;
        let marked = |e: &Entry| e.tool.as_ref().is_some_and(|tool| tool.is_sent());
        if !disk.inspect(|_, synced| synced.entries.get(&at).is_some_and(marked)) {
            self.find(format!(
                "1: tool call {name} of run {run} was sent, and entry {seq} on disk does not say so"
            ));
        }
        let is_answered = call.id.as_ref().is_some_and(|id| self.answers.contains_key(&(run, id.clone())));
        if is_answered {
            self.find(format!("4: tool call {:?} of run {run} was answered, and was made again", call.id));
        }
        let count = self.sent.entry((run, name.clone())).or_default();
        *count += 1;
        if *count > equal && !call.repeatable {
            let count = *count;
            self.find(format!(
                "tool call {name} of run {run} was made {count} times, and its program has it {equal} times"
            ));
        }
        let Some(id) = call.id.clone() else { return };
        let first = self.keys.entry((run, id.clone())).or_insert_with(|| key.clone()).clone();
        if first != key {
            self.find(format!("tool call {id} of run {run} had the key {first}, and then {key}"));
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
            self.find(format!(
                "tool call {} of run {run} got the answer {value:?} of entry {seq}",
                call.arguments
            ));
        }
        let known = call.id.as_ref().and_then(|id| self.answers.get(&(run, id.clone())));
        if let Some((_, first)) = known.filter(|(_, first)| Some(first) != value.as_ref()) {
            self.find(format!(
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
            self.find(format!("2: the answer to tool call {id:?} of run {run} in entry {seq} was acknowledged, and is in doubt"));
        }
    }

    fn find(&self, what: String) {
        self.found.borrow_mut().get_or_insert(what);
    }
}
