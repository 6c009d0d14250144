//! Divergence: the first new call a restarted agent made instead of a recorded one, and where the two requests
//! differ.

use std::cmp::Ordering;

use serde_json::Value;

use crate::{
    journal::{Entry, Kind, State},
    run::{Attempt, masks::Rules},
};

/// First new call that an attempt made while it had not taken all recorded answers.
#[derive(Clone, Debug)]
pub struct Parting<'a> {
    pub attempt: &'a Attempt,
    pub new: Entry,
    /// Recorded call replaced by `new`: the first one that the attempt had not taken. `None` if all were taken
    /// later.
    pub recorded: Option<Entry>,
    /// Answers left to the attempt that it may have taken before: a later attempt took them, too.
    taken_before: usize,
}

impl Parting<'_> {
    /// Compares the last attempt that took `e` with this one; `None` if `e` was not left to it.
    fn last_taker(&self, e: &Entry) -> Option<Ordering> {
        let is_left = e.kind == Kind::Call
            && e.state == State::Done
            && e.replayable
            && e.scope == self.new.scope
            && e.attempt < self.attempt.no
            && e.seq < self.new.seq;
        is_left.then(|| e.delivered_to.unwrap_or_default().cmp(&self.attempt.no))
    }
}

/// Returns the partings of a run, in the order of its attempts. `entries` reads the run's entries, in the order of their
/// numbers; it is called three times, and no list of them is held.
///
/// Errors: the first of `entries`.
pub fn partings<'a, E, I: Iterator<Item = Result<Entry, E>>>(
    attempts: &'a [Attempt],
    mut entries: impl FnMut() -> I,
) -> Result<Vec<Parting<'a>>, E> {
    if attempts.iter().all(|attempt| attempt.diverged.is_none()) {
        return Ok(Vec::new());
    }
    let mut found: Vec<Parting<'a>> = Vec::new();
    for entry in entries() {
        let entry = entry?;
        let its = attempts.iter().filter(|attempt| attempt.diverged == Some(entry.seq));
        found.extend(its.map(|attempt| Parting {
            attempt,
            new: entry.clone(),
            recorded: None,
            taken_before: 0,
        }));
    }
    found.sort_by_key(|parting| parting.attempt.no);
    // An answer remembers only the last attempt it was delivered to, so an answer taken by a later attempt may have
    // been taken by this one before: by its count of untaken answers, all but the last ones were.
    let mut never_taken = vec![0; found.len()];
    for entry in entries() {
        let entry = entry?;
        for (parting, never_taken) in found.iter_mut().zip(&mut never_taken) {
            match parting.last_taker(&entry) {
                Some(Ordering::Greater) => parting.taken_before += 1,
                Some(Ordering::Less) => *never_taken += 1,
                Some(Ordering::Equal) | None => {}
            }
        }
    }
    for (parting, never_taken) in found.iter_mut().zip(never_taken) {
        let untaken = usize::try_from(parting.attempt.untaken).unwrap_or(0).saturating_sub(never_taken);
        parting.taken_before = parting.taken_before.saturating_sub(untaken);
    }
    for entry in entries() {
        let entry = entry?;
        for parting in found.iter_mut().filter(|parting| parting.recorded.is_none()) {
            match parting.last_taker(&entry) {
                Some(Ordering::Greater) if parting.taken_before > 0 => parting.taken_before -= 1,
                Some(Ordering::Less | Ordering::Greater) => parting.recorded = Some(entry.clone()),
                Some(Ordering::Equal) | None => {}
            }
        }
    }
    Ok(found)
}

/// First place in which two values differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference<'a> {
    /// JSON pointer (RFC 6901) to the place; empty for the values as a whole.
    pub path: String,
    /// Recorded value; `None` if there is none at that place.
    pub recorded: Option<&'a Value>,
    pub new: Option<&'a Value>,
}

/// Compares two requests, member by member in the order of `new`, then the members only `recorded` has.
///
/// Ignores the places that `left_out` and the run's own rules point to. Strings that the run's masks make equal
/// are equal. Returns `None` if nothing differs.
pub fn first_difference<'a>(
    recorded: &'a Value,
    new: &'a Value,
    left_out: &[&str],
    rules: &Rules,
) -> Option<Difference<'a>> {
    let left_out: Vec<&str> = left_out.iter().copied().chain(rules.leave_out()).collect();
    let mut comparison = Comparison { left_out, rules, path: String::new() };
    let (recorded, new) = comparison.differ(recorded, new)?;
    Some(Difference { path: comparison.path, recorded, new })
}

type Sides<'a> = (Option<&'a Value>, Option<&'a Value>);

struct Comparison<'r> {
    left_out: Vec<&'r str>,
    rules: &'r Rules,
    /// Pointer to the values being compared; at the end, to those that differ.
    path: String,
}

impl Comparison<'_> {
    fn differ<'a>(&mut self, recorded: &'a Value, new: &'a Value) -> Option<Sides<'a>> {
        match (recorded, new) {
            (Value::Object(a), Value::Object(b)) => {
                let shared = b.iter().map(|(name, value)| (name, (a.get(name), Some(value))));
                let gone = a.iter().filter(|(name, _)| !b.contains_key(*name));
                let gone = gone.map(|(name, value)| (name, (Some(value), None)));
                shared.chain(gone).find_map(|(name, sides)| self.member(name, sides))
            }
            (Value::Array(a), Value::Array(b)) => {
                (0..a.len().max(b.len())).find_map(|i| self.member(&i.to_string(), (a.get(i), b.get(i))))
            }
            (Value::String(a), Value::String(b)) => {
                (a != b && self.rules.mask(a) != self.rules.mask(b)).then_some((Some(recorded), Some(new)))
            }
            (a, b) => (a != b).then_some((Some(a), Some(b))),
        }
    }

    fn member<'a>(&mut self, name: &str, sides: Sides<'a>) -> Option<Sides<'a>> {
        let above = self.path.len();
        self.path.push('/');
        self.path.push_str(&name.replace('~', "~0").replace('/', "~1"));
        let found = match sides {
            _ if self.left_out.contains(&self.path.as_str()) => None,
            (Some(a), Some(b)) => self.differ(a, b),
            (None, None) => None,
            sides => Some(sides),
        };
        if found.is_none() {
            self.path.truncate(above);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::run::Masks;

    #[test]
    fn the_first_place_that_differs_is_named_by_its_pointer() {
        let check = |recorded: Value, new: Value, wanted: Option<(&str, Option<Value>, Option<Value>)>| {
            let found = first_difference(&recorded, &new, &["/user"], &Rules::default());
            let found = found.map(|d| (d.path, d.recorded.cloned(), d.new.cloned()));
            assert_eq!(found, wanted.map(|(p, r, n)| (p.to_owned(), r, n)), "{recorded} {new}");
        };
        let some = |v: Value| Some(v);
        check(json!({"a": 1, "b": [2]}), json!({"b": [2], "a": 1}), None);
        check(json!({"a": 1, "b": 1}), json!({"b": 2, "a": 2}), Some(("/b", some(json!(1)), some(json!(2)))));
        check(
            json!({"m": [{"c": "x"}]}),
            json!({"m": [{"c": "y"}]}),
            Some(("/m/0/c", some(json!("x")), some(json!("y")))),
        );
        check(json!({"m": [1]}), json!({"m": [1, 2]}), Some(("/m/1", None, some(json!(2)))));
        check(json!({"m": [1, 2]}), json!({"m": [1]}), Some(("/m/1", some(json!(2)), None)));
        check(json!({"a": 1, "t": 0}), json!({"a": 1}), Some(("/t", some(json!(0)), None)));
        check(
            json!({"x": {"a/b~": null}}),
            json!({"x": {"a/b~": 0}}),
            Some(("/x/a~1b~0", some(json!(null)), some(json!(0)))),
        );
        check(json!({"a": 1}), json!({"a": 1.0}), Some(("/a", some(json!(1)), some(json!(1.0)))));
        // A left-out pointer names a place at the top: `/user` is ignored there, and compared like any other
        // below.
        check(json!({"user": "a"}), json!({"user": "b"}), None);
        check(
            json!({"x": {"user": 1}}),
            json!({"x": {"user": 2}}),
            Some(("/x/user", some(json!(1)), some(json!(2)))),
        );
        check(json!([]), json!({}), Some(("", some(json!([])), some(json!({})))));
    }

    #[test]
    fn what_the_run_masks_is_no_difference() {
        let rules = Masks {
            leave_out: vec!["/messages/0".into(), "/a~1b/x".into()],
            masks: [("day".to_owned(), r"\d{4}-\d{2}-\d{2}".to_owned())].into(),
        };
        let rules = rules.compile().unwrap();
        let check = |recorded: Value, new: Value, wanted: Option<&str>| {
            let found = first_difference(&recorded, &new, &[], &rules).map(|d| d.path);
            assert_eq!(found.as_deref(), wanted, "{recorded} {new}");
        };
        check(json!({"messages": ["a", "b"]}), json!({"messages": ["x", "b"]}), None);
        check(json!({"messages": ["a", "b"]}), json!({"messages": ["x", "c"]}), Some("/messages/1"));
        check(json!({"a/b": {"x": 1}}), json!({"a/b": {"x": 2}}), None);
        check(json!({"a/b": {"x": 1}}), json!({"a/b": {}}), None);
        check(json!({"t": "on 2026-11-20"}), json!({"t": "on 2026-11-21"}), None);
        check(json!({"t": "on 2026-11-20"}), json!({"t": "by 2026-11-21"}), Some("/t"));
    }
}
