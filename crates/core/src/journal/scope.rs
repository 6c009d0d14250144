//! Scopes: what a call's replay never crosses, and where the steps of an item or a step are found.
//!
//! A path: the iteration, then items and steps by their keys. A key may hold any text, so that
//! what separates is escaped in it.

use std::{borrow::Cow, sync::Arc};

use crate::{
    journal::{Entry, Kind},
    words::id::Seq,
};

fn part(key: &str) -> Cow<'_, str> {
    if key.contains(['%', '/']) {
        Cow::Owned(key.replace('%', "%25").replace('/', "%2F"))
    } else {
        Cow::Borrowed(key)
    }
}

/// Where the steps of an item are found: by its key and not its try, so that a finished step
/// serves the later tries of its item.
pub fn item_steps(key: &str, generation: i64) -> Arc<str> {
    format!("item:{}/{generation}", part(key)).into()
}

/// Where the steps within a step are found.
pub fn step_steps(scope: &str, key: &str) -> Arc<str> {
    format!("{scope}/{}", part(key)).into()
}

/// The scope of the calls of an item's try.
pub fn item_calls(key: &str, try_no: i64) -> Arc<str> {
    format!("item:{}:{try_no}", part(key)).into()
}

/// The scope of the calls of a try of a step declared with retries.
pub fn step_calls(scope: &str, key: &str, try_no: i64) -> Arc<str> {
    format!("step:{scope}/{}:{try_no}", part(key)).into()
}

/// Where the steps within `entry` are found; `None` when it can hold none.
pub fn steps_in(entry: &Entry) -> Option<Arc<str>> {
    let key = entry.key.as_deref()?;
    match entry.kind {
        Kind::Item => entry.item.as_ref().map(|d| item_steps(key, d.generation)),
        Kind::Step => Some(step_steps(&entry.scope, key)),
        _ => None,
    }
}

/// The scope of calls made in `entry`, an item or a step. `find` gives the entries around it.
///
/// `None` when it can hold no calls, or an entry around it is not found.
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

/// The path of a step for its calls: its scope, but under the generation of its item whose paid
/// answers are replayed.
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
    }
}
