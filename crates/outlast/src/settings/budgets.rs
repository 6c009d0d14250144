//! Named budgets as settings: `[budgets.NAME]` of the user's own `outlast.toml`; and beside them `plan`, the ceilings on
//! the plans of logins that every run is under.
//!
//! The store holds them; the file is read into it when `serve`, `run` or `resume` starts. A directory's file
//! may not name any: whoever can change a checkout, an agent for one, could raise what everybody may spend.

use outlast_core::{
    engine::{SetBudget, Source},
    envelope::{
        Ceilings, Per,
        budget::{Name, Terms},
    },
    reads,
    store::{self, Store},
};
use serde::Deserialize;

use crate::settings::{
    file::{self, Error},
    surroundings::Surroundings,
    values,
};

/// Name of the table of named budgets in `outlast.toml`.
pub const TABLE: &str = "budgets";

/// Key of the ceilings on plans, beside the tables of named budgets.
const PLAN: &str = "plan";

/// Budget as it is written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    usd: Option<toml::Value>,
    tokens: Option<u32>,
    calls: Option<u32>,
    per: Option<String>,
    tag: Option<String>,
}

/// Reads the named budgets of the user's own `outlast.toml`. Errors name the file and the key in it.
pub fn load(around: &Surroundings) -> Result<Vec<(Name, Terms)>, Error> {
    let Some((path, tables)) = file::own_tables(around, TABLE)? else { return Ok(Vec::new()) };
    let is_ceilings = |name: &str, value: &toml::Value| name == PLAN && !value.is_table();
    let named = tables.into_iter().filter(|(name, value)| !is_ceilings(name, value));
    let each = named.map(|(name, value)| {
        read(&name, value).map_err(|why| Error::bad(&path, format!("{TABLE}.{name}"), why))
    });
    each.collect()
}

/// Reads the ceilings that every run of the person is under: `plan = "5h=40%,week=15%"`.
pub fn plan(around: &Surroundings) -> Result<Option<Ceilings>, Error> {
    let Some((path, mut tables)) = file::own_tables(around, TABLE)? else { return Ok(None) };
    let Some(value) = tables.remove(PLAN).filter(|value| !value.is_table()) else { return Ok(None) };
    let read = match &value {
        toml::Value::String(text) => text.parse::<Ceilings>().map_err(|e| e.to_string()),
        other => Err(format!("wanted a text such as \"5h=40%,week=15%\", had {other}")),
    };
    read.map(Some).map_err(|why| Error::bad(&path, format!("{TABLE}.{PLAN}"), why))
}

fn read(name: &str, value: toml::Value) -> Result<(Name, Terms), String> {
    let name = Name::new(name).map_err(|e| e.to_string())?;
    let written: Written = file::read_as(value)?;
    let usd = match &written.usd {
        None => None,
        Some(toml::Value::String(text)) => Some(values::usd(text).map_err(|e| format!("usd: {e}"))?),
        // The shortest text of this number is what was written, for every amount people write.
        Some(number @ (toml::Value::Integer(_) | toml::Value::Float(_))) => {
            Some(values::usd(&number.to_string()).map_err(|e| format!("usd: {e}"))?)
        }
        Some(other) => return Err(format!("usd: wanted an amount, had {other}")),
    };
    let (tokens, calls) = (written.tokens.map(i64::from), written.calls.map(i64::from));
    if usd.is_none() && tokens.is_none() && calls.is_none() {
        return Err("wanted a limit: usd, tokens or calls".into());
    }
    let per = match &written.per {
        None => Per::None,
        Some(text) => {
            Per::parse(text).ok_or_else(|| format!("per: wanted hour, day, month or none, had {text:?}"))?
        }
    };
    let tag = written.tag.as_deref().map(values::tag).transpose().map_err(|e| format!("tag: {e}"))?;
    Ok((name, Terms { limits: values::shared_limits(usd, tokens, calls), per, tag }))
}

/// Writes the configured budgets into the store. Idempotent.
///
/// Synced: on disk before it returns. Errors: of the store.
pub fn sync(store: &dyn Store, configured: Vec<(Name, Terms)>) -> Result<(), store::Error> {
    for (name, terms) in configured {
        reads::budgets::set(store, SetBudget { name, terms, source: Source::File }, None)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast_core::envelope::Unit;

    #[test]
    fn a_budget_is_read_as_it_is_written() {
        let check = |text: &str, wanted: Result<(Option<i64>, Per, Option<&str>), &str>| {
            let value = toml::Value::Table(text.parse().unwrap());
            let had = read("team-search", value).map(|(_, terms)| {
                let tag = terms.tag.map(|(k, v)| format!("{k}={v}"));
                (terms.limits[Unit::CostNanoUsd], terms.per, tag)
            });
            let wanted = wanted.map(|(usd, per, tag)| (usd, per, tag.map(str::to_owned)));
            assert_eq!(had, wanted.map_err(str::to_owned), "{text}");
        };
        check(
            "usd = 50\nper = \"day\"\ntag = \"team=search\"",
            Ok((Some(50_000_000_000), Per::Day, Some("team=search"))),
        );
        check("usd = 0.25", Ok((Some(250_000_000), Per::None, None)));
        check("usd = \"0.000000001\"\nper = \"none\"", Ok((Some(1), Per::None, None)));
        check("calls = 5\nper = \"hour\"", Ok((None, Per::Hour, None)));
        check("per = \"day\"", Err("wanted a limit: usd, tokens or calls"));
        check("usd = 1\nper = \"week\"", Err("per: wanted hour, day, month or none, had \"week\""));
        check("usd = true", Err("usd: wanted an amount, had true"));
    }

    #[test]
    fn what_is_no_budget_says_what_was_wanted() {
        for (name, text, wanted) in [
            ("a b", "usd = 1", "wanted 1 to 64 of"),
            ("a", "usd = -1", "usd: "),
            ("a", "usd = 1\nlimit = 2", "unknown field `limit`"),
            ("a", "usd = 1\ntag = \"team\"", "tag: "),
        ] {
            let error = read(name, toml::Value::Table(text.parse().unwrap())).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
