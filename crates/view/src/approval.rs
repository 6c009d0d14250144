//! Approvals, with what a person needs to decide.

use outlast_core::{
    reads::approvals::View,
    words::{digest::Digest, id::RunId},
};
use serde_json::Value;

use crate::Time;

shape! {
    /// Approval that an agent asked a person for.
    pub Approval(view: &View; let (d, decision) = (&view.detail, view.detail.decision.as_ref())) {
        id: String = view.id.to_string();
        run: RunId = view.run.clone();
        name: Option<String> = view.name.clone();
        tool: String = d.tool.clone();
        side_effect: Option<String> = d.side_effect.clone();
        arguments: Value = serde_json::from_slice(&view.arguments).unwrap_or_default();
        digest: Digest = d.digest;
        key: String = view.key.clone();
        status: &'static str = view.status.name();
        iteration: i64 = d.iteration;
        asked_at: Time = Time(view.asked_at);
        expires_at: Time = Time(d.expires_at);
        reason: Option<String> = decision.and_then(|d| d.reason.clone());
        decided_by: Option<String> = decision.map(|d| d.by.clone());
        decided_at: Option<Time> = decision.map(|d| Time(d.at));
    }
}
