//! An agent's task context, its memory references, and the task that a loop has begun.
//!
//! All of them are keys of the run's own namespace, as `run.context` of the Python package has them: each change is one
//! commit on disk, and outlives every process. [`mirror`] is a copy of them for people and `jq`.

pub mod mirror;
pub mod reference;
pub mod task;
pub mod write;

use std::{collections::BTreeMap, sync::Arc};

use outlast_core::{
    engine::Change,
    reads::places,
    state::{At, Item, Name, run_namespace},
    store::{self, Store},
    words::{BadText, Micros, RunId},
};
use serde_json::Value;

use self::{reference::Reference, task::OpenTask};

/// Agent in the run's namespace that owns the context's keys, as for `run.context` of the Python package.
pub const CONTEXT: &str = "context";
pub const MEMORY: &str = "memory";
pub const TASK: &str = "task";
/// Agent that owns the done tasks, with their names as keys. [`ASIDE`] owns the tasks that were set aside.
pub const DONE: &str = "task.done";
pub const ASIDE: &str = "task.aside";

/// Key of the agent name [`TASK`] that holds the task which was begun and is not done.
pub const OPEN: &str = "open";

/// Most versions of a key that are searched.
const PAGE: usize = 500;

/// Task context of a run at one moment.
#[derive(Clone, Debug, Default)]
pub struct TaskContext {
    pub values: BTreeMap<String, Value>,
    pub references: BTreeMap<String, Reference>,
    /// Task that was begun and is not done; `None` if there is none.
    pub task: Option<OpenTask>,
    /// Version of the key [`OPEN`]. A change of the task expects it, and fails if another process has changed the task.
    pub task_version: i64,
    /// Time of the newest change to a value or reference; `None` if there is neither.
    pub at: Option<Micros>,
}

impl TaskContext {
    /// Reads the context, references and open task at one position.
    pub fn read(store: &dyn Store, run: &RunId) -> Result<TaskContext, store::Error> {
        let namespace = run_namespace(run);
        let at = At::Position(store.state_position()?);
        let mut found = TaskContext::default();
        for item in places::keys(store, &namespace, CONTEXT, at)? {
            found.at = found.at.max(Some(item.at));
            found.values.insert(item.key.clone(), typed(&item)?);
        }
        for item in places::keys(store, &namespace, MEMORY, at)? {
            found.at = found.at.max(Some(item.at));
            found.references.insert(item.key.clone(), typed(&item)?);
        }
        if let Some(item) = store.state_at(&namespace, TASK, OPEN, at.into())? {
            found.task_version = item.version;
            found.task = item.value.is_some().then(|| typed(&item)).transpose()?;
        }
        Ok(found)
    }

    /// Returns a value in the form in which a shell sees it: a text unchanged, anything else as JSON; `None`
    /// for a key that is not set.
    pub fn text(&self, key: &str) -> Option<String> {
        self.values.get(key).map(text)
    }
}

/// Formats a value as [`TaskContext::text`] does.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the full name of a key of `agent` in the run's namespace.
pub fn name(run: &RunId, agent: &str, key: &str) -> Arc<Name> {
    Name::new(run_namespace(run), agent, key)
}

/// Returns the change that sets a key of the context to a text.
pub fn set(run: &RunId, key: &str, value: &str) -> Change {
    put(run, CONTEXT, key, &Value::from(value))
}

/// Returns the change that sets a key of `agent` to `value` as JSON.
pub fn put(run: &RunId, agent: &str, key: &str, value: &Value) -> Change {
    Change::set(name(run, agent, key), value.to_string().as_bytes())
}

pub fn delete(run: &RunId, agent: &str, key: &str) -> Change {
    Change::delete(name(run, agent, key))
}

/// Returns whether the key has not had `value` since the time `since`. An old value is no news: a loop that goes back
/// and forth between two stages makes no progress.
pub fn is_news(
    store: &dyn Store,
    run: &RunId,
    key: &str,
    value: &str,
    since: Micros,
) -> Result<bool, store::Error> {
    let namespace = run_namespace(run);
    let Some(newest) = store.state(&namespace, CONTEXT, key)? else { return Ok(true) };
    // Versions beyond one page are not searched, so an old value may count as news again.
    let after = (newest.version - PAGE as i64).max(0);
    let wanted = Value::from(value).to_string();
    let past = store.state_history(&namespace, CONTEXT, key, after, PAGE)?.items;
    Ok(!past.iter().any(|i| i.at >= since && i.value.as_deref() == Some(wanted.as_bytes())))
}

/// Parses a value that Outlast wrote. Errors: `Corrupt` for JSON that does not fit `T`.
pub fn typed<T: serde::de::DeserializeOwned>(item: &Item) -> Result<T, store::Error> {
    serde_json::from_slice(item.value.as_deref().unwrap_or(b"null")).map_err(|e| store::Error::Corrupt {
        what: format!("key {:?} of {:?} in {:?}: {e}", item.key, item.agent, item.namespace),
    })
}

// --- Keys of the task context, and the one variable that each may set.

/// Named keys and the environment variable of each.
pub const NAMED: [(&str, &str); 5] = [
    ("task_id", "TASK_ID"),
    ("issue_number", "ISSUE_NUMBER"),
    ("workspace_path", "WORKSPACE_PATH"),
    ("branch_name", "BRANCH_NAME"),
    ("progress_stage", "PROGRESS_STAGE"),
];

/// Key under which the open task's id stands.
pub const TASK_ID: &str = "task_id";
/// Key under which the open task's stage stands.
pub const STAGE: &str = "progress_stage";

const LONGEST: usize = 64;

/// Returns whether `text` is a key: `[a-z][a-z0-9_]*`, at most 64 bytes.
pub fn is_key(text: &str) -> bool {
    text.len() <= LONGEST
        && text.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Parses a key.
pub fn key(text: &str) -> Result<String, BadText> {
    let wanted = "a to z, 0 to 9 and _, a letter first, at most 64 of them";
    if is_key(text) { Ok(text.to_owned()) } else { Err(BadText::new("a key", text, wanted)) }
}

/// Parses `KEY=VALUE`. The value is any text, also an empty one.
pub fn pair(text: &str) -> Result<(String, String), BadText> {
    let bad = || BadText::new("KEY=VALUE", text, "for example progress_stage=tests");
    let (name, value) = text.split_once('=').ok_or_else(bad)?;
    Ok((key(name)?, value.to_owned()))
}

/// Returns the environment variable that a key sets; `None` for a key from Python that cannot be a variable's name.
pub fn variable(key: &str) -> Option<String> {
    if let Some((_, variable)) = NAMED.iter().find(|(name, _)| *name == key) {
        return Some((*variable).to_owned());
    }
    is_key(key).then(|| format!("OUTLAST_CTX_{}", key.to_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_sets_its_own_variable_and_never_another() {
        for (key, wanted) in [
            ("task_id", Some("TASK_ID")),
            ("progress_stage", Some("PROGRESS_STAGE")),
            ("path", Some("OUTLAST_CTX_PATH")),
            ("ifs", Some("OUTLAST_CTX_IFS")),
            ("bash_env", Some("OUTLAST_CTX_BASH_ENV")),
            ("recovered_task_id", Some("OUTLAST_CTX_RECOVERED_TASK_ID")),
            ("PATH", None),
            ("a-b", None),
            ("a b", None),
            ("x;id", None),
            ("é", None),
            ("", None),
        ] {
            assert_eq!(variable(key).as_deref(), wanted, "{key}");
        }
    }

    #[test]
    fn a_pair_is_a_key_and_any_text() {
        for (text, wanted) in [
            ("a=b", ("a", "b")),
            ("a=", ("a", "")),
            ("a=b=c", ("a", "b=c")),
            ("a_1=$(x)\n'", ("a_1", "$(x)\n'")),
        ] {
            assert_eq!(pair(text), Ok((wanted.0.to_owned(), wanted.1.to_owned())));
        }
        for text in
            ["a", "", "=b", "A=b", "1a=b", "a-b=c", "PATH=x", " a=b", &format!("{}=x", "a".repeat(65))]
        {
            assert!(pair(text).unwrap_err().to_string().contains("wanted"), "{text}");
        }
    }
}
