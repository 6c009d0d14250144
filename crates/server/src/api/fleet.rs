//! Routes over all runs: named budgets and acts of a person on them, plans of logins, and spend.
//!
//! A budget keeps the newest act on it with who acted: no run's journal has a place for what concerns many runs.

use std::collections::BTreeMap;

use outlast_core::{
    engine::{InName, RaiseBudget, RemoveBudget, SetBudget, Source},
    envelope::{
        Ceilings, Per,
        budget::{Name, Terms, UNITS},
    },
    reads::{
        budgets, plans,
        spend::{self as ledger, Grouping},
    },
    store::{Ask as _, Durability, Store},
    words::Micros,
};
use outlast_view as view;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    acts::{Nothing, limits},
    request::{self, Answered, ApiRequest},
};
use crate::state::Error;

/// Answers with all named budgets.
pub(super) async fn budgets(asked: ApiRequest) -> Answered {
    let budgets = asked.read(|store| view::NamedBudget::all(store)).await?;
    request::json(&json!({ "budgets": budgets }))
}

/// Answers with the plans of all logins.
pub(super) async fn plans(asked: ApiRequest) -> Answered {
    let (now, plans) = asked.read(|store| Ok((store.now()?, plans::list(store)?))).await?;
    let plans = plans.iter().map(|(login, plan)| view::Plan::new(login, plan, &Ceilings::default(), now));
    request::json(&json!({ "plans": plans.collect::<Vec<_>>() }))
}

/// Answers with what was spent in a span of time, in groups.
pub(super) async fn spend(asked: ApiRequest) -> Answered {
    let by = asked.query.text("by").unwrap_or("day").split(',').map(Grouping::parse);
    let by = by.collect::<Result<Vec<_>, _>>().map_err(|e| Error::BadRequest(e.to_string()))?;
    let (since, until) = (asked.query.time("since")?, asked.query.time("until")?);
    let spend = asked.read(move |store| {
        // The ledger's end is exclusive, and a call of this very moment has to count.
        let until = match until {
            Some(until) => until,
            None => store.now()?.plus_ms(1),
        };
        let sums = ledger::spend(store, &by, since.unwrap_or(Micros(0)), until)?;
        Ok(view::Spend::new(&sums, &by, since, until))
    });
    request::json(&spend.await?)
}

/// Terms of a budget: limits of `cost_nano_usd`, `tokens` and `calls`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BudgetBody {
    limits: BTreeMap<String, i64>,
    /// `hour`, `day`, `month` or `none`, which is also meant where there is none.
    per: Option<String>,
    /// Tag of the runs that the budget is for, as `KEY=VALUE`; `None`: every run.
    tag: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct More {
    add: BTreeMap<String, i64>,
}

/// Sets the budget, and charges the runs to it that were there before. A repeat changes nothing.
pub(super) fn set_budget(
    store: &dyn Store,
    by: &str,
    name: &Name,
    wanted: BudgetBody,
) -> Result<Value, Error> {
    let bad = |what: &str, had: &str, wanted: &str| {
        let had: String = had.chars().take(80).collect();
        Error::BadRequest(format!("{what} is {had:?}, and {wanted} is wanted"))
    };
    let per = match &wanted.per {
        None => Per::None,
        Some(word) => Per::parse(word).ok_or_else(|| bad("per", word, "hour, day, month or none"))?,
    };
    let tag = wanted.tag.map(|text| match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(bad("tag", &text, "KEY=VALUE")),
    });
    let terms = Terms { limits: limits(&wanted.limits)?, per, tag: tag.transpose()? };
    let set = SetBudget { name: name.clone(), terms, source: Source::Command };
    let (told, charged) = budgets::set(store, set, Some(by))?;
    Ok(json!({ "budget": name.as_str(), "no": told.no, "changed": told.changed, "charged_runs": charged }))
}

/// Adds to the limits of the current period.
pub(super) fn raise_budget(store: &dyn Store, by: &str, name: &Name, more: More) -> Result<Value, Error> {
    let add = limits(&more.add)?;
    if more.add.is_empty() {
        return Err(Error::BadRequest("no limit is named: give add".into()));
    }
    let after =
        store.ask(InName::of(by, RaiseBudget { name: name.clone(), add }), Durability::Synced).wait()?;
    let limits: Map<String, Value> =
        UNITS.into_iter().filter_map(|u| Some((u.name().to_owned(), after[u]?.into()))).collect();
    Ok(json!({ "budget": name.as_str(), "limits": limits }))
}

/// Removes the budget. Runs that wait for it go on.
pub(super) fn remove_budget(store: &dyn Store, by: &str, name: &Name, _: Nothing) -> Result<Value, Error> {
    store.ask(InName::of(by, RemoveBudget { name: name.clone() }), Durability::Synced).wait()?;
    Ok(json!({ "budget": name.as_str() }))
}
