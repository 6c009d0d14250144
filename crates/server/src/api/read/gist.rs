//! Gist of an entry: what a model said and which tools it called, or what a tool did, in one line.

use outlast_core::{
    engine::{checkpoint::Name, tool::SCOPE},
    journal::{Entry, Kind, Role, State},
    reads::entries,
    run::{Attempt, Life},
    store::{Error, RunView, Store},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::exchange::answered;
use crate::dialect::conversation::{ToolCall, Turn, subject};

/// Most characters of a model's text, and of what a tool call is about.
const TEXT: usize = 120;
const SUBJECT: usize = 100;

/// Most tool calls of one answer, or paths of one snapshot, that are named.
const CALLS: usize = 4;

/// Outcome of a tool call that an agent made itself. It is stored as the value of the call's entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    Finished {
        code: Option<i32>,
    },
    /// An MCP server answered the call, and the recorder has its answer.
    Recorded,
    /// A process of the call outlived the agent and was ended by Outlast.
    EndedByOutlast,
    /// The call had begun, and none of its processes was alive when the agent had ended: its exit code is unknown.
    Ended,
    Unknown,
}

impl Outcome {
    /// Returns the outcome in the words that a resumed model is told.
    pub fn words(&self) -> String {
        match self {
            Outcome::Finished { code: Some(code) } => format!("finished with code {code}"),
            Outcome::Finished { code: None } => "finished".into(),
            Outcome::Recorded => "finished; the same call again is given its recorded answer".into(),
            Outcome::EndedByOutlast => "ended by Outlast before it had finished".into(),
            Outcome::Ended => "ended, code unknown".into(),
            Outcome::Unknown => "unknown".into(),
        }
    }
}

/// Returns the gist of an entry; `None` for one of which nothing is kept that could be told in a line.
///
/// Errors: those of the store. What is kept and cannot be read has no gist.
pub fn gist(store: &dyn Store, entry: &Entry) -> Result<Option<String>, Error> {
    match entry.kind {
        Kind::Call if entry.state == State::Done => match answered(store, entry) {
            Err(Error::Corrupt { .. }) => Ok(None),
            turns => Ok(of_answer(&turns?)),
        },
        Kind::Tool => of_tool(store, entry),
        Kind::Checkpoint if entry.key.as_deref() == Some(&*Name::files()) => {
            let changed =
                kept(store, entry, Role::Value)?.and_then(|value| serde_json::from_value(value).ok());
            Ok(changed.and_then(of_files))
        }
        _ => Ok(None),
    }
}

/// Most calls of a run, the newest ones, among which its last words are looked for.
const NEWEST: usize = 50;

/// Returns the last text that the run's model said, among its newest calls; `None` if it said none, it is not kept, or the
/// run is a batch job, whose items say something each.
///
/// Errors: those of the store. An answer that cannot be read says nothing.
pub fn last_words(store: &dyn Store, view: &RunView) -> Result<Option<String>, Error> {
    // A run without a paid call has no answer: its entries, which may be a million steps, are not looked through. A fork has
    // answers that its origin has paid.
    let has_none = view.run.origins.is_empty() && view.run.own.calls == 0;
    if view.run.job.is_some() || has_none {
        return Ok(None);
    }
    let newest = entries::each_back(store, view.run.no, view.run.next_seq);
    let is_answer = |e: &Entry| e.kind == Kind::Call && e.state == State::Done;
    for entry in newest.filter(|e| e.as_ref().map_or(true, is_answer)).take(NEWEST) {
        let turns = match answered(store, &entry?) {
            Err(Error::Corrupt { .. }) => continue,
            turns => turns?,
        };
        if let Some(words) = words(&turns) {
            return Ok(Some(words));
        }
    }
    Ok(None)
}

/// Returns the last text that the model said in an answer, on one line; `None` if it said none.
pub fn words(turns: &[Turn]) -> Option<String> {
    let texts = turns.iter().flat_map(Turn::texts).map(str::trim);
    texts.filter(|text| !text.is_empty()).last().map(|text| line(text, TEXT))
}

fn of_answer(turns: &[Turn]) -> Option<String> {
    let calls: Vec<&ToolCall> = turns.iter().flat_map(Turn::calls).collect();
    let mut parts: Vec<String> = words(turns).map(|text| format!("“{text}”")).into_iter().collect();
    if !calls.is_empty() {
        let named = calls.iter().take(CALLS).map(|call| tool(&call.name, &call.input));
        let more = calls.len().checked_sub(CALLS + 1).map(|more| format!("{} more", more + 1));
        parts.push(format!("→ {}", named.chain(more).collect::<Vec<_>>().join(", ")));
    }
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// Changes of a snapshot of files against the one before, as its entry holds them.
#[derive(Deserialize)]
struct ChangedFiles {
    changed: usize,
    /// First paths.
    #[serde(default)]
    paths: Vec<String>,
}

fn of_files(ChangedFiles { changed, paths }: ChangedFiles) -> Option<String> {
    let count = if changed == 1 { "1 path".into() } else { format!("{changed} paths") };
    let named = paths.iter().take(CALLS).map(|path| line(path, SUBJECT));
    let more = changed.checked_sub(paths.len().min(CALLS) + 1).map(|more| format!("{} more", more + 1));
    match (changed, paths.is_empty()) {
        (0, _) => None,
        (_, true) => Some(format!("{count} changed")),
        (_, false) => Some(format!("{count} changed: {}", named.chain(more).collect::<Vec<_>>().join(", "))),
    }
}

/// Reads a value that is kept with an entry; `None`: it is not kept, or is no JSON.
fn kept(store: &dyn Store, entry: &Entry, role: Role) -> Result<Option<Value>, Error> {
    let bytes = store.payload(entry.run, entry.seq, role)?.and_then(|kept| kept.decode().ok());
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// Returns the outcome that is kept of an agent's own tool call; `None` for any other entry, and before its end.
fn outcome(store: &dyn Store, entry: &Entry) -> Result<Option<Outcome>, Error> {
    if entry.kind != Kind::Tool || entry.tool.is_some() {
        return Ok(None);
    }
    Ok(kept(store, entry, Role::Value)?.and_then(|value| serde_json::from_value(value).ok()))
}

/// Returns the state of an entry as people are told it. In doubt is, beside what is stored so, a tool call or an
/// `at_most_once` step that is open though nobody is at work on it, and an agent's own tool call whose end nobody saw.
pub fn told_state(store: &dyn Store, entry: &Entry) -> Result<State, Error> {
    let is_unseen = match (entry.state, entry.kind) {
        (State::Open, Kind::Tool) => {
            let is_sent = entry.tool.as_ref().map_or(&*entry.scope == SCOPE, |tool| tool.is_sent());
            is_sent && is_cut_off(store, entry)?
        }
        (State::Open, Kind::Step) => {
            entry.step.as_ref().is_some_and(|step| step.at_most_once) && is_cut_off(store, entry)?
        }
        (State::Failed, _) => matches!(outcome(store, entry)?, Some(Outcome::Ended | Outcome::Unknown)),
        _ => false,
    };
    Ok(if is_unseen { State::Unknown } else { entry.state })
}

/// Returns whether nobody is at work on an open entry: its attempt or its process is over. A recorder of tool calls is a
/// process of its own, and may outlive the attempt.
fn is_cut_off(store: &dyn Store, entry: &Entry) -> Result<bool, Error> {
    let process = entry.instance.map(|no| store.instance(no)).transpose()?.flatten();
    if process.is_none_or(|process| process.life != Life::Live) {
        return Ok(true);
    }
    let is_its = |attempt: &Attempt| attempt.no == entry.attempt && attempt.is_open();
    Ok(entry.tool.is_none() && !store.attempts(entry.run)?.iter().any(is_its))
}

/// Returns the entry as people are told it: with the state of [`told_state`], and in doubt without an end, which nobody
/// saw.
pub fn as_told(store: &dyn Store, entry: Entry) -> Result<Entry, Error> {
    let state = told_state(store, &entry)?;
    Ok(Entry { state, closed_at: entry.closed_at.filter(|_| state != State::Unknown), ..entry })
}

/// Returns the name of a tool call as people are told it; `None` for any other entry, and where nothing of it is kept.
pub fn tool_name(store: &dyn Store, entry: &Entry) -> Result<Option<String>, Error> {
    // A call through the MCP recorder has its server and tool in its own row.
    if let Some(detail) = &entry.tool {
        return Ok(Some(detail.name()));
    }
    if entry.kind != Kind::Tool {
        return Ok(None);
    }
    let about = kept(store, entry, Role::About)?.unwrap_or_default();
    Ok(about["tool"].as_str().map(|name| tool(name, about["input"].as_str().unwrap_or_default())))
}

fn of_tool(store: &dyn Store, entry: &Entry) -> Result<Option<String>, Error> {
    let Some(name) = tool_name(store, entry)? else { return Ok(None) };
    let end = match (outcome(store, entry)?, told_state(store, entry)?) {
        (Some(Outcome::Finished { code: Some(code) }), _) => format!("exit {code}"),
        (Some(Outcome::Finished { code: None } | Outcome::Recorded), _) | (None, State::Done) => {
            "done".into()
        }
        (Some(cut_off @ Outcome::EndedByOutlast), _) => cut_off.words(),
        (Some(ended @ Outcome::Ended), _) => format!("{}: {}", State::Unknown.word(), ended.words()),
        (None, State::Unknown) if entry.state == State::Open => "in doubt, it was cut off".into(),
        (Some(Outcome::Unknown), _) | (None, State::Unknown) => State::Unknown.word().into(),
        (None, State::Open) if entry.tool.as_ref().is_some_and(|tool| !tool.is_sent()) => {
            "not sent yet".into()
        }
        (None, State::Open) => "at work".into(),
        (None, State::Failed) => "failed".into(),
        (None, State::Void) => "not made".into(),
    };
    Ok(Some(format!("{name}: {end}")))
}

/// Returns a tool call in a few words, as in ``Bash `python -m pytest` ``.
fn tool(name: &str, input: &str) -> String {
    match line(&subject(input), SUBJECT) {
        about if about.is_empty() => line(name, SUBJECT),
        about => format!("{} `{about}`", line(name, SUBJECT)),
    }
}

/// Returns a text on one line, cut to `most` characters.
fn line(text: &str, most: usize) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dialect::conversation;

    #[test]
    fn changed_files_are_told_by_their_number_and_the_first_of_them() {
        let check = |value: Value, wanted: Option<&str>| {
            let changed = serde_json::from_value(value).unwrap();
            assert_eq!(of_files(changed).as_deref(), wanted);
        };
        check(json!({ "changed": 0 }), None);
        check(json!({ "changed": 1, "paths": ["a b"] }), Some("1 path changed: a b"));
        let paths = ["a", "b", "c", "d", "e"];
        check(json!({ "changed": 9, "paths": paths }), Some("9 paths changed: a, b, c, d, 5 more"));
        // Entries of an older version name none.
        check(json!({ "changed": 2 }), Some("2 paths changed"));
    }

    #[test]
    fn an_answer_is_told_by_its_last_words_and_its_tools() {
        let check = |content: Value, wanted: Option<&str>| {
            let body = json!({ "type": "message", "role": "assistant", "content": content }).to_string();
            assert_eq!(of_answer(&conversation::answer(body.as_bytes())).as_deref(), wanted, "{body}");
        };
        let call =
            |name: &str, input: Value| json!({ "type": "tool_use", "id": "t", "name": name, "input": input });
        check(json!([{ "type": "text", "text": " All\n tests pass. " }]), Some("“All tests pass.”"));
        check(
            json!([
                { "type": "text", "text": "I look." },
                call("Bash", json!({ "command": "python -m pytest" })),
                call("Edit", json!({ "old_string": "a", "file_path": "/w/a.py" })),
            ]),
            Some("“I look.” → Bash `python -m pytest`, Edit `/w/a.py`"),
        );
        let many: Vec<Value> = (0..6).map(|n| call(&format!("t{n}"), json!({}))).collect();
        check(json!(many), Some("→ t0, t1, t2, t3, 2 more"));
        check(json!([]), None);
    }
}
