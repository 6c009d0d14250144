//! Request for an approval.

use std::sync::Arc;

use outlast_core::{
    engine::approval::request_approval::{Asker, RequestApproval},
    journal::{
        approval::{Answer, EXPIRES_MS},
        payload::Payload,
    },
    store::{Ask as _, Durability, Store},
};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{dialect::canonical_value, state::Error};

/// Body of a request for an approval. Unknown members are ignored, as RiskKernel's clients expect.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalBody {
    pub tool: String,
    pub side_effect: Option<String>,
    /// Arguments of the tool call, any JSON; `None`: `{}`.
    pub arguments: Option<Box<RawValue>>,
    /// Key by which the caller identifies the request; `None`: tool and arguments identify it.
    pub key: Option<String>,
    /// Seconds from now until the approval expires; `None`: a day.
    pub expires_in_seconds: Option<f64>,
}

/// Requests an approval in the name of `asker`. Durable before it returns.
///
/// Errors: those of `RequestApproval`; arguments that have a key twice.
pub async fn ask(store: &Arc<dyn Store>, asker: Asker, wanted: ApprovalBody) -> Result<Answer, Error> {
    let text = wanted.arguments.as_deref().map_or("{}", RawValue::get);
    let arguments = canonical_value(text.as_bytes())
        .map_err(|e| Error::BadRequest(format!("the arguments are no JSON that can be told apart: {e}")))?;
    let expires_ms = match wanted.expires_in_seconds {
        None => EXPIRES_MS,
        // Saturates beyond the range of `i64`, which means never.
        Some(seconds) => (seconds * 1000.0).ceil() as i64,
    };
    let request = RequestApproval {
        asker,
        key: wanted.key,
        tool: wanted.tool,
        side_effect: wanted.side_effect,
        arguments: Payload::encode(&arguments),
        expires_ms,
    };
    Ok(store.ask(request, Durability::Synced).await?)
}
