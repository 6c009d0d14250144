//! `outlast state diff`: shows which keys an agent learnt, forgot and changed between two moments.

use outlast_core::{
    reads::places,
    state::{At, Item},
};

use super::{super::prelude::*, WIDTH, at};
use crate::commands::state::DiffArgs;

/// Difference at one place in a key's value. The place is a JSON pointer, empty for the whole value. `None`: no value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub place: String,
    pub before: Option<Value>,
    pub after: Option<Value>,
}

pub fn diff(store: &dyn Store, args: &DiffArgs, page: &mut Page) -> Result {
    let before = known(store, args, at(Some(args.from), &args.place.namespace, store)?)?;
    let after = known(store, args, at(args.to, &args.place.namespace, store)?)?;
    let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut changes = Vec::new();
    let mut counts = [0, 0, 0];
    for key in keys {
        let (old, new) = (before.get(key), after.get(key));
        if old.map(|i| i.version) == new.map(|i| i.version) {
            continue;
        }
        let found = between(value(old), value(new));
        let kind = match (old, new) {
            (None, _) => 0,
            (_, None) => 1,
            _ => 2,
        };
        counts[kind] += 1;
        let versions = (old.map(|i| i.version), new.map(|i| i.version));
        if page.look.json {
            changes.push(json!({ "key": key, "from_version": versions.0, "to_version": versions.1, "differences": found }));
        } else {
            print(key, versions, &found, page)?;
        }
    }
    if page.look.json {
        return Ok(page.json(&json!({ "changes": changes }))?);
    }
    let [learnt, forgotten, changed] = counts;
    Ok(page.line(&format!("{} learnt, {forgotten} forgotten, {changed} changed", some(learnt, "key")))?)
}

fn print(key: &str, versions: (Option<i64>, Option<i64>), found: &[Difference], page: &mut Page) -> Result {
    let key = clean_line(key, WIDTH);
    let head = match versions {
        (None, Some(v)) => page.look.paint(Paint::Good, &format!("+ {key}  (version {v})")),
        (Some(v), None) => page.look.paint(Paint::Bad, &format!("- {key}  (was version {v})")),
        (a, b) => {
            let (a, b) = (a.unwrap_or(0), b.unwrap_or(0));
            page.look.paint(Paint::Care, &format!("~ {key}  (version {a} to {b})"))
        }
    };
    page.line(&head)?;
    for d in found {
        let place =
            if d.place.is_empty() { String::new() } else { format!("{}: ", clean_line(&d.place, WIDTH)) };
        for (sign, value, paint) in [("-", &d.before, Paint::Bad), ("+", &d.after, Paint::Good)] {
            if let Some(value) = value {
                let line = format!("    {sign} {place}{}", clean_line(&value.to_string(), WIDTH));
                page.line(&page.look.paint(paint, &line))?;
            }
        }
    }
    Ok(())
}

/// Reads the values of all live keys of the agent, as of `at`.
fn known(store: &dyn Store, args: &DiffArgs, at: At) -> Result<BTreeMap<String, Item>> {
    let items = places::keys(store, &args.place.namespace, &args.agent, at)?;
    Ok(items.into_iter().map(|i| (i.key.clone(), i)).collect())
}

/// Parses a value as JSON; a value that is not JSON is compared as text.
fn value(item: Option<&Item>) -> Option<Value> {
    Some(json_or_text(item?.value.as_ref()?))
}

/// Returns the differences between two values; `None`: the key did not exist. Objects are compared in depth, and so are
/// arrays that differ in elements or by one insertion or removal.
pub fn between(before: Option<Value>, after: Option<Value>) -> Vec<Difference> {
    let mut found = Vec::new();
    compare(String::new(), before, after, &mut found);
    found
}

fn compare(place: String, before: Option<Value>, after: Option<Value>, found: &mut Vec<Difference>) {
    match (before, after) {
        (a, b) if a == b => {}
        (Some(Value::Object(mut a)), Some(Value::Object(b))) => {
            let mut rest: Vec<(String, Option<Value>, Option<Value>)> = Vec::new();
            for (name, new) in b {
                rest.push((name.clone(), a.shift_remove(&name), Some(new)));
            }
            rest.extend(a.into_iter().map(|(name, old)| (name, Some(old), None)));
            rest.sort_by(|x, y| x.0.cmp(&y.0));
            for (name, old, new) in rest {
                let name = name.replace('~', "~0").replace('/', "~1");
                compare(format!("{place}/{name}"), old, new, found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if a.len() == b.len() => {
            for (n, (old, new)) in a.into_iter().zip(b).enumerate() {
                compare(format!("{place}/{n}"), Some(old), Some(new), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if is_longer(&a, &b) || is_longer(&b, &a) => {
            let same = a.iter().zip(&b).take_while(|(old, new)| old == new).count();
            let more = a.len().abs_diff(b.len());
            for n in same..same + more {
                let (before, after) =
                    if a.len() > b.len() { (a.get(n).cloned(), None) } else { (None, b.get(n).cloned()) };
                found.push(Difference { place: format!("{place}/{n}"), before, after });
            }
        }
        (before, after) => found.push(Difference { place, before, after }),
    }
}

/// Returns whether `long` is `short` with elements inserted at one place, as in a conversation that went on.
fn is_longer(long: &[Value], short: &[Value]) -> bool {
    let first = long.iter().zip(short).take_while(|(a, b)| a == b).count();
    let rest = &short[first..];
    long.len() > short.len() && !short.is_empty() && long.ends_with(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_told_where_it_is() {
        let check = |before: Value, after: Value, want: &[(&str, Option<Value>, Option<Value>)]| {
            let found = between(Some(before), Some(after));
            let found: Vec<_> = found.into_iter().map(|d| (d.place, d.before, d.after)).collect();
            let want: Vec<_> = want.iter().map(|(p, a, b)| ((*p).to_owned(), a.clone(), b.clone())).collect();
            assert_eq!(found, want);
        };
        check(json!({"a": 1}), json!({"a": 1}), &[]);
        check(json!({"a": 1}), json!({"a": 2}), &[("/a", Some(json!(1)), Some(json!(2)))]);
        check(
            json!({"a": 1}),
            json!({"b": 1}),
            &[("/a", Some(json!(1)), None), ("/b", None, Some(json!(1)))],
        );
        check(
            json!({"a": [1, {"x/y": 2}]}),
            json!({"a": [1, {"x/y": 3}]}),
            &[("/a/1/x~1y", Some(json!(2)), Some(json!(3)))],
        );
        check(json!([1]), json!([1, 2]), &[("/1", None, Some(json!(2)))]);
        check(json!([1, 1]), json!([1]), &[("/1", Some(json!(1)), None)]);
        check(
            json!({"m": [1, 2, 5]}),
            json!({"m": [1, 2, 3, 4, 5]}),
            &[("/m/2", None, Some(json!(3))), ("/m/3", None, Some(json!(4)))],
        );
        check(json!([7, 1, 2]), json!([1, 2]), &[("/0", Some(json!(7)), None)]);
        check(json!([1, 2]), json!([3, 4, 5]), &[("", Some(json!([1, 2])), Some(json!([3, 4, 5])))]);
        check(json!([]), json!([1]), &[("", Some(json!([])), Some(json!([1])))]);
        check(json!(null), json!({}), &[("", Some(json!(null)), Some(json!({})))]);
    }
}
