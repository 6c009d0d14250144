//! Policies by name: from `[policies.NAME]` of `outlast.toml`, or from the store.

use std::{collections::BTreeMap, path::Path};

use outlast_core::{
    envelope::{Limits, Unit},
    reads::policies::{self, NamedPolicy},
    run::rules::{Requirement, Rules},
    store::{self, Ask, Durability, Store},
};
use serde::Deserialize;

use crate::settings::{
    file::{self, Error},
    surroundings::Surroundings,
    values,
};

/// Name of the table of policies in `outlast.toml`.
pub const TABLE: &str = "policies";

/// Policy as it is written in the file, with limits as texts like those of the flags.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    usd: Option<toml::Value>,
    tokens: Option<toml::Value>,
    calls: Option<toml::Value>,
    loops: Option<toml::Value>,
    wall: Option<toml::Value>,
    active: Option<toml::Value>,
    restarts: Option<toml::Value>,
    pause_wall: bool,
    tools: Option<Vec<String>>,
    needs_approval: Vec<Requirement>,
}

/// Parses the table `[policies]`. Errors: the policy's name and what is wrong with it.
pub fn read(tables: &toml::Table, path: &Path) -> Result<Vec<NamedPolicy>, Error> {
    let bad = |name: &String, why: String| Error::bad(path, format!("{TABLE}.{name}"), why);
    tables.iter().map(|(name, value)| one(name, value).map_err(|why| bad(name, why))).collect()
}

fn one(name: &str, value: &toml::Value) -> Result<NamedPolicy, String> {
    if !policies::is_name(name) {
        return Err("a policy's name is 1 to 128 of A-Z a-z 0-9 . _ : -".into());
    }
    let written: Written = file::read_as(value.clone())?;
    let mut limits = Limits::default();
    for (word, unit, value, read) in [
        ("usd", Unit::CostNanoUsd, &written.usd, values::usd as values::Read),
        ("tokens", Unit::Tokens, &written.tokens, values::count),
        ("calls", Unit::Calls, &written.calls, values::count),
        ("loops", Unit::Loops, &written.loops, values::count),
        ("wall", Unit::WallMs, &written.wall, values::ms),
        ("active", Unit::ActiveMs, &written.active, values::ms),
        ("restarts", Unit::Restarts, &written.restarts, values::count),
    ] {
        let Some(value) = value else { continue };
        limits[unit] = Some(read(&text(value)).map_err(|e| format!("{word}: {e}"))?);
    }
    if let Some(empty) = written.needs_approval.iter().position(|r| *r == Requirement::default()) {
        return Err(format!("needs_approval: entry {} names neither a tool nor a side_effect", empty + 1));
    }
    let rules = Rules { policy: name.to_owned(), tools: written.tools, require: written.needs_approval };
    Ok(NamedPolicy { limits, pause_wall: written.pause_wall, rules, ..NamedPolicy::default() })
}

/// Returns a value as it would be typed.
fn text(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns all configured policies. A policy in the user's own file replaces one of the same name in the directory's
/// file: a checkout must not loosen a policy of the user.
pub fn load(around: &Surroundings) -> Result<Vec<NamedPolicy>, Error> {
    let mut found: BTreeMap<String, NamedPolicy> = BTreeMap::new();
    // The directory's file comes first, so the user's own replaces its entries.
    for (path, tables) in file::tables(around, TABLE)? {
        found.extend(read(&tables, &path)?.into_iter().map(|p| (p.name().to_owned(), p)));
    }
    Ok(found.into_values().collect())
}

/// Writes the configured policies into the store, where runs created over REST and by Python find them. Unchanged
/// policies are not written again.
pub fn register(configured: &[NamedPolicy], store: &dyn Store) -> Result<(), store::Error> {
    for policy in configured {
        let kept = policies::find(store, policy.name())?;
        let same = |p: &NamedPolicy| {
            (&p.limits, p.pause_wall, &p.rules) == (&policy.limits, policy.pause_wall, &policy.rules)
        };
        if !kept.as_ref().is_some_and(same) {
            let put = policies::put(store, policy, store.now()?)?;
            store.ask(put, Durability::Synced).wait()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_or_refused_by_what_is_wrong_with_it() {
        let check = |text: &str, want: Result<(Option<i64>, Option<i64>, usize), &str>| {
            let table: toml::Table = text.parse().unwrap();
            let had = read(&table, Path::new("f")).map(|found| {
                let p = &found[0];
                (p.limits[Unit::CostNanoUsd], p.limits[Unit::WallMs], p.rules.require.len())
            });
            assert_eq!(had, want.map_err(|why| Error::bad(Path::new("f"), "policies.p", why)), "{text}");
        };
        check("[p]", Ok((None, None, 0)));
        check("[p]\nusd = 2\nwall = '1h'", Ok((Some(2_000_000_000), Some(3_600_000), 0)));
        check("[p]\nusd = 0.25", Ok((Some(250_000_000), None, 0)));
        check("[p]\nneeds_approval = [{tool='a'}, {side_effect='write'}]", Ok((None, None, 2)));
        check(
            "[p]\nneeds_approval = [{}]",
            Err("needs_approval: entry 1 names neither a tool nor a side_effect"),
        );
        for bad in
            ["[p]\nusd = -1", "[p]\ncalls = 'x'", "[p]\nwords = 1", "[p]\ntools = 'a'", "p = 1", "['a b']"]
        {
            let table: toml::Table = bad.parse().unwrap();
            assert!(read(&table, Path::new("f")).is_err(), "{bad}");
        }
    }
}
