//! Routes of named policies: put, get, list. Never for a run.

use outlast_core::{
    reads::policies::{self, NamedPolicy},
    run::rules::{Requirement, Rules},
    store::{Ask as _, Durability},
};
use serde::Deserialize;

use super::show;
use crate::{
    api::{
        amount::{self, Budget},
        gate::Caller,
        request::{Answered, ApiRequest, created, json},
    },
    state::Error,
};

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
        let limits = amount::limits(&self.budget)?;
        let rules = Rules { policy: self.name, tools, require };
        Ok(NamedPolicy { limits, pause_wall: self.pause_wall, rules, ..NamedPolicy::default() })
    }
}

/// Checks that no run asks.
fn not_a_runs(caller: &Caller) -> Result<(), Error> {
    match caller {
        Caller::Api(_) => Ok(()),
        Caller::Run(_) => Err(Error::NoRunDecides),
    }
}

/// Puts a policy, which only a person may do.
pub async fn put(asked: ApiRequest) -> Answered {
    asked.caller.must_be_a_person()?;
    let policy = asked.json::<Sent>()?.policy()?;
    let name = policy.name().to_owned();
    let put = asked.read(move |s| policies::put(s, &policy, s.now()?)).await?;
    asked.host.store.ask(put, Durability::Synced).await?;
    let kept = asked.read(move |s| policies::find(s, &name)).await?;
    created(&kept.as_ref().map(show::policy))
}

/// Answers with all policies.
pub async fn list(asked: ApiRequest) -> Answered {
    not_a_runs(&asked.caller)?;
    let found = asked.read(|s| policies::list(s)).await?;
    json(&found.iter().map(show::policy).collect::<Vec<_>>())
}

/// Answers with one policy.
pub async fn get(asked: ApiRequest) -> Answered {
    not_a_runs(&asked.caller)?;
    let name = asked.name().to_owned();
    match asked.read(move |s| policies::find(s, &name)).await? {
        Some(policy) => json(&show::policy(&policy)),
        None => Err(Error::UnknownPolicy { name: asked.name().chars().take(80).collect() }),
    }
}
