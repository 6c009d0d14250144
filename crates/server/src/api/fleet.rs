//! Routes over all runs: named budgets, plans of logins, and spend.

use outlast_core::{
    envelope::ceiling::Ceilings,
    reads::{
        plans,
        spend::{self as ledger, Grouping},
    },
    words::id::Micros,
};
use outlast_view as view;
use serde_json::json;

use super::request::{self, Answered, ApiRequest};
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
