//! Changes to the task that a loop has begun. Pure: the caller commits them.

use outlast_core::{
    engine::Change,
    words::{Micros, RunId},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{ASIDE, CONTEXT, DONE, NAMED, OPEN, TASK, TASK_ID, TaskContext, delete, name, put, set};
pub use crate::program::error::TaskRefused as Refused;

/// Task of a loop that was begun and is not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenTask {
    pub task: String,
    /// Number of attempts that worked on the task since its last progress, the present one included.
    pub lives: i64,
    /// Attempt that works on the task. A later attempt finds the task interrupted.
    pub attempt: i64,
    /// Time at which the task was begun, in microseconds since the Unix epoch.
    pub begun_at: i64,
}

/// Outcome of [`recover`].
#[derive(Clone, Debug)]
pub enum Recovery {
    /// No task was begun without being done.
    Nothing,
    /// The task is continued; `changes` have to be committed.
    Task { task: String, lives: i64, changes: Vec<Change> },
    /// The task was begun in more attempts without progress than allowed; `changes` record it as set aside.
    SetAside { task: String, lives: i64, changes: Vec<Change> },
}

/// Returns the changes that begin `task`, or go on with it if it is the open task. A new task removes the named keys
/// that an earlier one left.
///
/// Errors: the name is empty; another task is unfinished.
pub fn begin(
    run: &RunId,
    context: &TaskContext,
    task: &str,
    pairs: &[(String, String)],
    attempt: i64,
    now: Micros,
) -> Result<Vec<Change>, Refused> {
    if task.is_empty() {
        return Err(Refused::Nameless);
    }
    let open = match &context.task {
        Some(open) if open.task != task => {
            return Err(Refused::Unfinished { had: open.task.clone(), asked: task.to_owned() });
        }
        Some(open) => OpenTask { lives: lives_now(open, attempt), attempt, ..open.clone() },
        None => OpenTask { task: task.to_owned(), lives: 1, attempt, begun_at: now.0 },
    };
    let mut changes = vec![opened(run, context, &open)];
    if context.task.is_none() {
        changes.extend(forgotten(run, context, |k| k == TASK_ID || pairs.iter().any(|(p, _)| p == k)));
    }
    changes.push(set(run, TASK_ID, task));
    changes.extend(pairs.iter().filter(|(k, _)| k != TASK_ID).map(|(k, v)| set(run, k, v)));
    Ok(changes)
}

/// Finds the unfinished task: the open one, or the one that only `task_id` of the context names. `most_lives`: attempts
/// without progress after which the task is set aside; `None`: any number.
pub fn recover(
    run: &RunId,
    context: &TaskContext,
    attempt: i64,
    most_lives: Option<i64>,
    now: Micros,
) -> Recovery {
    let open = match (&context.task, context.text(TASK_ID)) {
        (Some(open), _) => open.clone(),
        // Set by an earlier life, because this one has not begun a task.
        (None, Some(task)) if !task.is_empty() => {
            OpenTask { task, lives: 1, attempt: attempt - 1, begun_at: now.0 }
        }
        (None, _) => return Recovery::Nothing,
    };
    let lives = lives_now(&open, attempt);
    let task = open.task.clone();
    if most_lives.is_some_and(|most| lives > most) {
        let why = json!({ "lives": open.lives, "at": now.0, "context": context.values });
        let mut changes = vec![put(run, ASIDE, &task, &why), closed(run, context)];
        changes.extend(forgotten(run, context, |_| false));
        return Recovery::SetAside { task, lives: open.lives, changes };
    }
    let mut changes = Vec::new();
    if context.task.is_none() || open.attempt != attempt {
        changes.push(opened(run, context, &OpenTask { lives, attempt, ..open }));
    }
    if context.text(TASK_ID).as_deref() != Some(&task) {
        changes.push(set(run, TASK_ID, &task));
    }
    Recovery::Task { task, lives, changes }
}

/// Returns the task's name and the changes that record it as done. Errors: no task is open, or another than
/// `asked` is.
pub fn done(
    run: &RunId,
    context: &TaskContext,
    asked: Option<&str>,
    now: Micros,
) -> Result<(String, Vec<Change>), Refused> {
    let task = match (&context.task, context.text(TASK_ID)) {
        (Some(open), _) => open.task.clone(),
        (None, Some(task)) if !task.is_empty() => task,
        (None, _) => return Err(Refused::NoTask),
    };
    if let Some(asked) = asked.filter(|a| *a != task) {
        return Err(Refused::Another { had: task, asked: asked.to_owned() });
    }
    let mut changes = vec![put(run, DONE, &task, &json!({ "at": now.0 }))];
    if context.task.is_some() {
        changes.push(closed(run, context));
    }
    changes.extend(forgotten(run, context, |_| false));
    Ok((task, changes))
}

/// Returns the change that records progress, which sets the task's count of attempts back to 1; `None` if no task is
/// open or the count is 1.
pub fn got_on(run: &RunId, context: &TaskContext) -> Option<Change> {
    let open = context.task.as_ref().filter(|open| open.lives > 1)?;
    Some(opened(run, context, &OpenTask { lives: 1, ..open.clone() }))
}

fn lives_now(open: &OpenTask, attempt: i64) -> i64 {
    open.lives + i64::from(open.attempt != attempt)
}

/// Writes the open task. The expected version keeps two processes of one attempt from both beginning.
fn opened(run: &RunId, context: &TaskContext, open: &OpenTask) -> Change {
    put(run, TASK, OPEN, &json!(open)).expecting(context.task_version)
}

fn closed(run: &RunId, context: &TaskContext) -> Change {
    Change::delete(name(run, TASK, OPEN)).expecting(context.task_version)
}

/// Returns the changes that delete the named keys of the context, except those that are set anyway.
fn forgotten<'a>(
    run: &'a RunId,
    context: &'a TaskContext,
    is_set: impl Fn(&str) -> bool + 'a,
) -> impl Iterator<Item = Change> + 'a {
    let there = |k: &&str| context.values.contains_key(*k);
    NAMED.iter().map(|(k, _)| *k).filter(there).filter(move |k| !is_set(k)).map(|k| delete(run, CONTEXT, k))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> RunId {
        RunId::new("r").unwrap()
    }

    fn at(task: &str, lives: i64, attempt: i64) -> TaskContext {
        let open = OpenTask { task: task.into(), lives, attempt, begun_at: 5 };
        let values = [("task_id", task), ("branch_name", "b"), ("own", "o")];
        TaskContext {
            values: values.map(|(k, v)| (k.to_owned(), v.into())).into(),
            task: Some(open),
            task_version: 3,
            ..TaskContext::default()
        }
    }

    /// Returns the changed keys: `key` for one that is set, `-key` for one that is deleted.
    fn keys(changes: &[Change]) -> Vec<String> {
        let one = |c: &Change| format!("{}{}", if c.value.is_some() { "" } else { "-" }, c.name.key);
        changes.iter().map(one).collect()
    }

    #[test]
    fn a_task_begins_without_what_the_one_before_it_left() {
        let left = TaskContext { task: None, ..at("t0", 1, 1) };
        let pairs = [("issue_number".to_owned(), "7".to_owned())];
        let changes = begin(&run(), &left, "t1", &pairs, 2, Micros(9)).unwrap();
        assert_eq!(keys(&changes), ["open", "-branch_name", "task_id", "issue_number"]);
        assert_eq!(changes[0].expected, Some(3));
    }

    #[test]
    fn a_task_that_is_begun_keeps_another_from_being_begun_and_goes_on_itself() {
        let refused = begin(&run(), &at("t", 1, 1), "u", &[], 1, Micros(9)).unwrap_err();
        assert_eq!(refused, Refused::Unfinished { had: "t".into(), asked: "u".into() });
        assert_eq!(
            keys(&begin(&run(), &at("t", 1, 1), "t", &[], 1, Micros(9)).unwrap()),
            ["open", "task_id"]
        );
        assert_eq!(begin(&run(), &at("t", 1, 1), "", &[], 1, Micros(9)).unwrap_err(), Refused::Nameless);
    }

    #[test]
    fn each_life_that_takes_a_task_up_is_counted_once() {
        let lives =
            |context: &TaskContext, attempt| match recover(&run(), context, attempt, Some(3), Micros(9)) {
                Recovery::Task { lives, .. } => Some(lives),
                _ => None,
            };
        assert_eq!(lives(&at("t", 1, 1), 2), Some(2));
        assert_eq!(lives(&at("t", 2, 2), 2), Some(2), "asked twice in one life");
        assert_eq!(lives(&at("t", 3, 2), 3), None);
        let named = TaskContext { task: None, task_version: 0, ..at("t", 1, 1) };
        assert_eq!(lives(&named, 2), Some(2), "a task that is only named");
        assert!(matches!(recover(&run(), &TaskContext::default(), 2, None, Micros(9)), Recovery::Nothing));
    }

    #[test]
    fn a_task_that_never_gets_on_is_set_aside_and_kept() {
        let Recovery::SetAside { lives, changes, .. } =
            recover(&run(), &at("t", 3, 3), 4, Some(3), Micros(9))
        else {
            panic!("not set aside");
        };
        assert_eq!(
            (lives, keys(&changes)),
            (3, ["t", "-open", "-task_id", "-branch_name"].map(String::from).to_vec())
        );
        assert!(got_on(&run(), &at("t", 1, 1)).is_none() && got_on(&run(), &at("t", 2, 2)).is_some());
    }

    #[test]
    fn a_task_is_done_by_its_own_name_and_leaves_what_is_not_its() {
        let (task, changes) = done(&run(), &at("t", 1, 1), None, Micros(9)).unwrap();
        assert_eq!(
            (task.as_str(), keys(&changes).join(" ").as_str()),
            ("t", "t -open -task_id -branch_name")
        );
        let another = done(&run(), &at("t", 1, 1), Some("u"), Micros(9)).unwrap_err();
        assert_eq!(another, Refused::Another { had: "t".into(), asked: "u".into() });
        assert_eq!(done(&run(), &TaskContext::default(), None, Micros(9)).unwrap_err(), Refused::NoTask);
    }
}
