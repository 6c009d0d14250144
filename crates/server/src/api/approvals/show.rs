//! JSON shapes of approvals and policies.

use outlast_core::{
    envelope::unit::{Limits, Unit},
    journal::approval::Status,
    reads::{approvals::View, policies::NamedPolicy},
    words::{calendar::rfc3339, money::NanoUsd},
};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};

/// Approval as JSON. Its arguments are in canonical JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    pub id: String,
    pub run_id: String,
    /// Name of the run; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_name: Option<String>,
    pub step_index: i64,
    pub tool: String,
    pub side_effect: String,
    pub arguments: Option<Box<RawValue>>,
    pub arguments_digest: String,
    pub key: String,
    /// Status in RiskKernel's terms: `pending`, `approved` or `denied`. `denied` includes timeout, blocked and void.
    pub status: &'static str,
    /// Status in Outlast's terms, such as `timeout`.
    pub outcome: &'static str,
    pub required: bool,
    pub created_at: String,
    pub expires_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<String>,
}

pub fn approval(view: &View) -> Approval {
    let (detail, decision) = (&view.detail, view.detail.decision.as_ref());
    let arguments = std::str::from_utf8(&view.arguments).ok();
    Approval {
        id: view.id.to_string(),
        run_id: view.run.to_string(),
        run_name: view.name.clone(),
        step_index: detail.at_loop,
        tool: detail.tool.clone(),
        side_effect: detail.side_effect.clone().unwrap_or_default(),
        arguments: arguments.and_then(|text| RawValue::from_string(text.to_owned()).ok()),
        arguments_digest: detail.digest.to_string(),
        key: view.key.clone(),
        status: status(view.status).name(),
        outcome: view.status.name(),
        required: true,
        created_at: rfc3339(view.asked_at),
        expires_at: rfc3339(detail.expires_at),
        reason: decision.map_or_else(|| why(view.status), |d| d.reason.clone()),
        decided_by: decision.map(|d| d.by.clone()),
        decided_at: decision.map(|d| rfc3339(d.at)),
    }
}

/// Maps a status to the three that RiskKernel's clients know: pending, approved, denied.
fn status(status: Status) -> Status {
    match status {
        Status::Pending | Status::Approved | Status::Denied => status,
        Status::Timeout | Status::Blocked | Status::Void => Status::Denied,
    }
}

/// Returns why an approval counts as denied although nobody denied it.
fn why(status: Status) -> Option<String> {
    let why = match status {
        Status::Timeout => "nobody decided in time",
        Status::Blocked => "the run's policy has no such tool",
        Status::Void => "the run ended before anybody decided",
        Status::Pending | Status::Approved | Status::Denied => return None,
    };
    Some(why.to_owned())
}

/// Returns an approval in the shape of a tool call's outcome: `approved`, `denied`, `blocked` or `timeout`.
pub fn tool_call(view: &View) -> Approval {
    let status = if view.status == Status::Void { Status::Denied } else { view.status };
    Approval { status: status.name(), ..approval(view) }
}

/// Returns the answer for a tool call that needs no approval.
pub fn not_required() -> Value {
    json!({ "status": "approved", "required": false })
}

/// Returns a policy as JSON.
pub fn policy(policy: &NamedPolicy) -> Value {
    let require: Vec<Value> = policy
        .rules
        .require
        .iter()
        .map(|r| json!({ "tool": r.tool.as_deref().unwrap_or(""), "sideEffect": r.side_effect.as_deref().unwrap_or("") }))
        .collect();
    json!({
        "name": policy.name(),
        "budget": budget(&policy.limits),
        "toolAllowlist": policy.rules.tools.as_deref().unwrap_or_default(),
        "approvalPolicy": { "requireFor": require },
        "pauseWall": policy.pause_wall,
        "createdAt": rfc3339(policy.created_at),
        "updatedAt": rfc3339(policy.updated_at),
    })
}

/// Returns limits as JSON, with RiskKernel's names. 0 means no limit.
pub fn budget(limits: &Limits) -> Value {
    let usd = limits[Unit::CostNanoUsd].map_or_else(|| "0".to_owned(), |nano| NanoUsd(nano).to_string());
    let dollars: Option<Box<RawValue>> = RawValue::from_string(usd).ok();
    let whole = |unit: Unit| limits[unit].unwrap_or(0);
    json!({
        "tokens": whole(Unit::Tokens),
        "dollars": dollars,
        "loops": whole(Unit::Loops),
        "seconds": whole(Unit::WallMs).div_euclid(1000),
    })
}
