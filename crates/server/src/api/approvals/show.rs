//! JSON shapes of approvals and policies.

use outlast_core::{
    journal::approval::Status,
    reads::{approvals::View, policies::NamedPolicy},
    words::calendar::rfc3339,
};
use outlast_view::{Time, shape};
use serde_json::{Value, json, value::RawValue};

use crate::api::amount::ShownBudget;

shape! {
    /// Approval in RiskKernel's shape. Its arguments are in canonical JSON.
    #[serde(rename_all = "camelCase")]
    pub Approval(view: &View; let (detail, decision) = (&view.detail, view.detail.decision.as_ref())) {
        id: String = view.id.to_string();
        run_id: String = view.run.to_string();
        /// Name of the run; absent if it has none.
        #[serde(skip_serializing_if = "Option::is_none")]
        run_name: Option<String> = view.name.clone();
        step_index: i64 = detail.at_loop;
        tool: String = detail.tool.clone();
        side_effect: String = detail.side_effect.clone().unwrap_or_default();
        arguments: Option<Box<RawValue>> = std::str::from_utf8(&view.arguments)
            .ok()
            .and_then(|text| RawValue::from_string(text.to_owned()).ok());
        arguments_digest: String = detail.digest.to_string();
        key: String = view.key.clone();
        /// Status in RiskKernel's terms: `pending`, `approved` or `denied`. `denied` includes timeout, blocked and void.
        status: &'static str = status(view.status).name();
        /// Status in Outlast's terms, such as `timeout`.
        outcome: &'static str = view.status.name();
        required: bool = true;
        created_at: Time = Time(view.asked_at);
        expires_at: Time = Time(detail.expires_at);
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String> = decision.map_or_else(|| why(view.status), |d| d.reason.clone());
        #[serde(skip_serializing_if = "Option::is_none")]
        decided_by: Option<String> = decision.map(|d| d.by.clone());
        #[serde(skip_serializing_if = "Option::is_none")]
        decided_at: Option<Time> = decision.map(|d| Time(d.at));
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
    Approval { status: status.name(), ..Approval::new(view) }
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
        "budget": ShownBudget::new(&policy.limits),
        "toolAllowlist": policy.rules.tools.as_deref().unwrap_or_default(),
        "approvalPolicy": { "requireFor": require },
        "pauseWall": policy.pause_wall,
        "createdAt": rfc3339(policy.created_at),
        "updatedAt": rfc3339(policy.updated_at),
    })
}
