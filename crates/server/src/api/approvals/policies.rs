//! Routes of named policies: put, get, list. Never for a run.

use http::{Response, StatusCode};
use outlast_core::{
    envelope::unit::{Limits, Unit},
    reads::policies::{self, NamedPolicy},
    run::rules::{Requirement, Rules},
    store::{Ask as _, Durability},
    words::money::NanoUsd,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ApprovalsRequest, By, answered, may_decide, query, read, show};
use crate::{state::Error, wire::body::AnswerBody};

/// Body of a policy, with RiskKernel's names.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Sent {
    name: String,
    budget: Budget,
    tool_allowlist: Option<Vec<String>>,
    approval_policy: ApprovalPolicy,
    pause_wall: bool,
}

/// Limits of a policy. 0, like an absent member, means no limit.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Budget {
    tokens: Option<i64>,
    dollars: Option<Box<RawValue>>,
    loops: Option<i64>,
    seconds: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ApprovalPolicy {
    require_for: Option<Vec<Require>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Require {
    tool: Option<String>,
    side_effect: Option<String>,
}

impl Budget {
    /// Returns the limits in the engine's units. Errors: an amount that is not a number, or is negative.
    pub fn limits(&self) -> Result<Limits, Error> {
        let mut limits = Limits::default();
        let mut set = |unit: Unit, value: Option<i64>, times: i64| {
            let Some(value) = value.filter(|v| *v != 0) else { return Ok(()) };
            let scaled = value.checked_mul(times).filter(|v| *v > 0);
            limits[unit] = Some(scaled.ok_or_else(|| {
                Error::BadRequest(format!("the budget's {} is {value}, and 0 or more is wanted", unit.name()))
            })?);
            Ok::<_, Error>(())
        };
        set(Unit::Tokens, self.tokens, 1)?;
        set(Unit::Loops, self.loops, 1)?;
        set(Unit::WallMs, self.seconds, 1000)?;
        let usd = match self.dollars.as_deref().map(RawValue::get) {
            None | Some("null") => None,
            Some(text) => Some(NanoUsd::parse(text).map_err(|e| Error::BadRequest(e.to_string()))?.0),
        };
        set(Unit::CostNanoUsd, usd, 1)?;
        Ok(limits)
    }
}

impl Sent {
    fn policy(self) -> Result<NamedPolicy, Error> {
        if !policies::is_name(&self.name) {
            let shown: String = self.name.chars().take(80).collect();
            let text = format!("{shown:?} is no name (wanted 1 to 128 of A-Z a-z 0-9 . _ : -)");
            return Err(Error::BadRequest(text));
        }
        let named = |text: Option<String>| text.filter(|t| !t.is_empty());
        let require = self.approval_policy.require_for.unwrap_or_default();
        let require = require
            .into_iter()
            .map(|r| Requirement { tool: named(r.tool), side_effect: named(r.side_effect) })
            .collect();
        // In RiskKernel an empty list allows any tool.
        let tools = self.tool_allowlist.filter(|tools| !tools.is_empty());
        let limits = self.budget.limits()?;
        let rules = Rules { policy: self.name, tools, require };
        Ok(NamedPolicy { limits, pause_wall: self.pause_wall, rules, ..NamedPolicy::default() })
    }
}

fn not_a_runs(by: &By) -> Result<(), Error> {
    match by {
        By::Api { .. } => Ok(()),
        By::Run(_) => Err(Error::NoRunDecides),
    }
}

pub(super) async fn put(asked: ApprovalsRequest<'_>) -> Result<Response<AnswerBody>, Error> {
    may_decide(&asked.by)?;
    let sent: Sent = serde_json::from_slice(&asked.body)
        .map_err(|e| Error::BadRequest(format!("the body has to be a policy: {e}")))?;
    let policy = sent.policy()?;
    let name = policy.name().to_owned();
    let put = read(asked.store, move |s| policies::put(s, &policy, s.now()?)).await?;
    asked.store.ask(put, Durability::Synced).await?;
    let kept = read(asked.store, move |s| policies::find(s, &name)).await?;
    answered(StatusCode::CREATED, &kept.as_ref().map(show::policy))
}

pub(super) async fn list(asked: ApprovalsRequest<'_>) -> Result<Response<AnswerBody>, Error> {
    not_a_runs(&asked.by)?;
    let found = read(asked.store, |s| policies::list(s)).await?;
    answered(StatusCode::OK, &found.iter().map(show::policy).collect::<Vec<_>>())
}

pub(super) async fn get(asked: ApprovalsRequest<'_>) -> Result<Response<AnswerBody>, Error> {
    not_a_runs(&asked.by)?;
    let name = query::decode(asked.segment.unwrap_or_default())?;
    let wanted = name.clone();
    match read(asked.store, move |s| policies::find(s, &wanted)).await? {
        Some(policy) => answered(StatusCode::OK, &show::policy(&policy)),
        None => Err(Error::UnknownPolicy { name: name.chars().take(80).collect() }),
    }
}
