//! Scopes of journal entries. Replay of a call never crosses its scope, and steps are looked up by theirs.
//!
//! A scope is a path: the iteration, or items and steps by their keys. A key may hold any text, so separators
//! are escaped in it.

use std::{borrow::Cow, sync::Arc};

use crate::{
    journal::{Entry, Kind},
    words::Seq,
};

fn part(key: &str) -> Cow<'_, str> {
    if key.contains(['%', '/']) {
        Cow::Owned(key.replace('%', "%25").replace('/', "%2F"))
    } else {
        Cow::Borrowed(key)
    }
}

/// Returns the scope of an item's steps: by its key and not its try, so that a finished step serves the later
/// tries of its item.
pub fn item_steps(key: &str, generation: i64) -> Arc<str> {
    format!("item:{}/{generation}", part(key)).into()
}

/// Returns the scope of the steps within a step.
pub fn step_steps(scope: &str, key: &str) -> Arc<str> {
    format!("{scope}/{}", part(key)).into()
}

/// Returns the scope of the calls of an item's try.
pub fn item_calls(key: &str, try_no: i64) -> Arc<str> {
    format!("item:{}:{try_no}", part(key)).into()
}

/// Returns the scope of the calls made in one try of a step declared with retries.
pub fn step_calls(scope: &str, key: &str, try_no: i64) -> Arc<str> {
    format!("step:{scope}/{}:{try_no}", part(key)).into()
}

/// Returns the beginning that the scopes of calls in an item's steps with retries share.
pub fn calls_of_steps(key: &str, root: i64) -> String {
    format!("step:{}/", item_steps(key, root))
}

/// Returns the scope of the steps within `entry`; `None` if it can hold none.
pub fn steps_in(entry: &Entry) -> Option<Arc<str>> {
    let key = entry.key.as_deref()?;
    match entry.kind {
        Kind::Item => entry.item.as_ref().map(|d| item_steps(key, d.generation)),
        Kind::Step => Some(step_steps(&entry.scope, key)),
        _ => None,
    }
}

/// Returns whether the scope is one of calls in an item.
pub fn is_of_item(scope: &str) -> bool {
    scope.strip_prefix("step:").unwrap_or(scope).starts_with("item:")
}

/// Returns the scope of calls made in `entry`, an item or a step. `find` gives the entries around it.
///
/// Returns `None` if the entry can hold no calls, or if an entry around it is not found.
pub fn calls_in<'a>(entry: &'a Entry, find: &dyn Fn(Seq) -> Option<&'a Entry>) -> Option<Arc<str>> {
    let key = entry.key.as_deref()?;
    match entry.kind {
        Kind::Item => entry.item.as_ref().map(|d| item_calls(key, d.try_no)),
        Kind::Step => match entry.step.as_deref() {
            Some(d) if d.retries => Some(step_calls(&root_of(entry, find)?, key, d.try_no)),
            Some(d) => match d.within {
                Some(outer) => calls_in(find(outer)?, find),
                None => Some(entry.scope.clone()),
            },
            None => Some(entry.scope.clone()),
        },
        _ => None,
    }
}

/// Returns the path of a step for its calls: the step's scope, but under the item generation whose paid answers
/// are replayed.
fn root_of<'a>(step: &'a Entry, find: &dyn Fn(Seq) -> Option<&'a Entry>) -> Option<Arc<str>> {
    let Some(outer) = step.step.as_ref().and_then(|d| d.within) else { return Some(step.scope.clone()) };
    let outer = find(outer)?;
    let key = outer.key.as_deref()?;
    match (&outer.kind, &outer.item) {
        (Kind::Item, Some(d)) => Some(item_steps(key, d.root)),
        _ => Some(step_steps(&root_of(outer, find)?, key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_not_run_into_each_other() {
        assert_ne!(step_steps("i0", "a/b"), step_steps(&step_steps("i0", "a"), "b"));
        assert_ne!(item_steps("a/1", 0), step_steps(&item_steps("a", 1), "0"));
        assert_ne!(item_calls("%2F", 1), item_calls("/", 1));
        assert_eq!(&*item_calls("doc 7", 2), "item:doc 7:2");
        assert_eq!(&*step_calls("i0", "fetch", 1), "step:i0/fetch:1");
        let step = step_calls(&item_steps("a", 0), "fetch", 1);
        let had = [&step, &item_calls("a", 1), &step_calls("i0", "item:", 1)].map(|scope| is_of_item(scope));
        assert_eq!(had, [true, true, false]);
        assert!(step_calls(&item_steps("a/b", 2), "fetch", 1).starts_with(&calls_of_steps("a/b", 2)));
    }
}
