//! Routes over all runs: named budgets, plans of logins, and spend. Amounts are whole numbers of their unit (dollars in
//! nano-dollars), times are microseconds since the Unix epoch.

use http::Response;
use outlast_core::{
    envelope::budget::{BudgetView, UNITS},
    reads::{
        room,
        spend::{self as ledger, Grouping, Sum},
    },
    store::{self, Store},
    words::id::{Micros, RunId},
};
use serde_json::{Map, Value, json};

use super::{
    read,
    request::{self, ApiRequest},
};
use crate::{state::Error, wire::body::AnswerBody};

/// Answers with all named budgets.
pub(super) async fn budgets(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    request::json(&asked.read(all_budgets).await?)
}

/// Answers with the plans of all logins.
pub(super) async fn plans(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    request::json(&asked.read(read::plans::all).await?)
}

fn all_budgets(store: &dyn Store) -> Result<Value, store::Error> {
    let (now, waiting) = (store.now()?, room::waiting(store)?);
    let one = |view: &BudgetView| {
        let (budget, period, e) = (&view.budget, view.budget.period(now), view.envelope_at(now));
        let units = UNITS.into_iter().filter(|u| e.limits[*u].is_some()).map(|u| {
            json!({
                "unit": u.name(),
                "limit": e.limits[u],
                "spent": e.spent[u],
                "reserved": e.reserved[u],
                "in_doubt": e.doubt[u],
                "remaining": e.free(u),
            })
        });
        let acts = budget.acts.iter().map(
            |act| json!({ "at": act.at.0, "what": act.what, "by": act.detail.by, "about": act.detail.about }),
        );
        let waiting = waiting.get(budget.name.as_str()).map_or(&[][..], Vec::as_slice);
        json!({
            "name": budget.name.as_str(),
            "per": budget.terms.per.name(),
            "tag": budget.terms.tag.as_ref().map(|(k, v)| format!("{k}={v}")),
            "period": period.name,
            "until": period.until.map(|t| t.0),
            "units": units.collect::<Vec<Value>>(),
            "acts": acts.collect::<Vec<Value>>(),
            "waiting": waiting.iter().map(RunId::as_str).collect::<Vec<_>>(),
        })
    };
    Ok(json!({ "budgets": store.budgets()?.iter().map(one).collect::<Vec<Value>>() }))
}

/// Answers with what was spent in a span of time, in groups.
pub(super) async fn spend(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    let by = asked.query.text("by").unwrap_or("day").split(',').map(Grouping::parse);
    let by = by.collect::<Result<Vec<_>, _>>().map_err(|e| Error::BadRequest(e.to_string()))?;
    let since = Micros(asked.query.number("since")?.unwrap_or(0));
    let until = asked.query.number("until")?.map(Micros);
    let told = asked.read(move |store| {
        // The ledger's end is exclusive, and a call of this very moment has to count.
        let until = match until {
            Some(until) => until,
            None => store.now()?.plus_ms(1),
        };
        spent(store, &by, since, until)
    });
    request::json(&told.await?)
}

fn spent(store: &dyn Store, by: &[Grouping], since: Micros, until: Micros) -> Result<Value, store::Error> {
    let told = ledger::spend(store, by, since, until)?;
    let fill = |o: &mut Map<String, Value>, s: &Sum| {
        o.insert("calls".into(), s.calls.into());
        o.insert("tokens".into(), s.tokens.into());
        o.insert("spent_nano_usd".into(), s.spent_nano_usd.into());
        o.insert("in_doubt_nano_usd".into(), s.doubt_nano_usd.into());
        o.insert("unbacked_nano_usd".into(), s.unbacked_nano_usd.into());
    };
    let lines = told.groups.iter().map(|(group, sum)| {
        let mut o: Map<String, Value> =
            by.iter().map(Grouping::name).zip(group.iter().map(|v| Value::from(v.clone()))).collect();
        fill(&mut o, sum);
        Value::Object(o)
    });
    let lines: Vec<Value> = lines.collect();
    let mut total = Map::new();
    fill(&mut total, &told.total);
    let by: Vec<String> = by.iter().map(Grouping::name).collect();
    Ok(json!({ "since": since.0, "until": until.0, "by": by, "lines": lines, "total": total }))
}
