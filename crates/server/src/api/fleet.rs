//! Read-only routes over all runs: budgets, plans and spend (`/v1/budgets`, `/v1/plans`, `/v1/spend`).
//!
//! For callers with the API token, or on an unprotected loopback listener. Clients cannot set limits. Amounts are whole
//! numbers of their unit (dollars in nano-dollars), times are microseconds since the Unix epoch.

use http::{Method, Response, request::Parts};
use outlast_core::{
    envelope::budget::{BudgetView, UNITS},
    reads::{
        room,
        spend::{self, Grouping, Sum},
    },
    store::Store,
    words::id::{Micros, RunId},
};
use serde_json::{Map, Value, json};

use crate::{
    api::{query, read::plans},
    proxy::host::Host,
    wire::{
        body::{AnswerBody, JSON, unkept},
        refuse::Refusal,
        who,
    },
};

/// Routes over all runs, with their query parameters. A test compares `docs/reference/openapi.json` with them.
pub const FLEET: [(&str, &[&str]); 3] =
    [("/v1/budgets", &[]), ("/v1/plans", &[]), ("/v1/spend", &["by", "since", "until"])];

/// Answers a GET of the routes [`FLEET`]; `None` for any other path.
pub async fn answer(host: &Host, parts: &Parts) -> Option<Result<Response<AnswerBody>, Refusal>> {
    let (path, words) = FLEET.iter().find(|(path, _)| *path == parts.uri.path())?;
    Some(read(host, parts, path, words).await)
}

async fn read(
    host: &Host,
    parts: &Parts,
    path: &'static str,
    words: &[&str],
) -> Result<Response<AnswerBody>, Refusal> {
    who::api(&host.config.access, &parts.headers)?;
    if parts.method != Method::GET {
        return Err(Refusal::ReadOnly { method: parts.method.to_string(), path });
    }
    let asked = query(parts.uri.query().unwrap_or_default(), words)?;
    let store = host.store.clone();
    // On a blocking thread: the ledger may be long.
    let told = tokio::task::spawn_blocking(move || match path {
        "/v1/budgets" => budgets(&*store),
        "/v1/plans" => Ok(plans::all(&*store)?),
        _ => spent(&*store, &asked),
    });
    let body = told.await.map_err(|e| Refusal::Internal(e.to_string()))??;
    Ok(unkept(200, JSON, body.to_string()))
}

/// Parses a query. Errors: `bad_request` for a parameter that is unknown or there twice.
fn query(text: &str, words: &[&str]) -> Result<Vec<(String, String)>, Refusal> {
    let mut found: Vec<(String, String)> = Vec::new();
    for pair in text.split('&').filter(|p| !p.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !words.contains(&name) {
            let known = if words.is_empty() { "none".to_owned() } else { words.join(", ") };
            return Err(Refusal::BadQuery(format!("unknown parameter {name:?} (wanted some of: {known})")));
        }
        if found.iter().any(|(n, _)| n == name) {
            return Err(Refusal::BadQuery(format!("the parameter {name:?} is there twice")));
        }
        let value = query::decode(value).map_err(|e| Refusal::BadQuery(e.to_string()))?;
        found.push((name.to_owned(), value));
    }
    Ok(found)
}

fn word<'a>(asked: &'a [(String, String)], name: &str) -> Option<&'a str> {
    asked.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
}

fn budgets(store: &dyn Store) -> Result<Value, Refusal> {
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

fn spent(store: &dyn Store, asked: &[(String, String)]) -> Result<Value, Refusal> {
    let moment = |name: &str, otherwise: Micros| match word(asked, name) {
        None => Ok(otherwise),
        Some(text) => text.parse().map(Micros).map_err(|_| {
            Refusal::BadQuery(format!("{name} is {text:?}, and microseconds since the Unix epoch are wanted"))
        }),
    };
    let by = word(asked, "by").unwrap_or("day").split(',').map(Grouping::parse);
    let by = by.collect::<Result<Vec<_>, _>>().map_err(|e| Refusal::BadQuery(e.to_string()))?;
    // The ledger's end is exclusive, and a call of this very moment has to count.
    let (since, until) = (moment("since", Micros(0))?, moment("until", store.now()?.plus_ms(1))?);
    let told = spend::spend(store, &by, since, until)?;
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
