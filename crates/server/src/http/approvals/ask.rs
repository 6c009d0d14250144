//! An agent's question, as it is sent.

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

/// A question. Members it does not have are left alone, as RiskKernel's clients expect.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wanted {
    pub tool: String,
    pub side_effect: Option<String>,
    /// Any JSON; without it `{}`.
    pub arguments: Option<Box<RawValue>>,
    /// The caller's own name of the question; without one, tool and arguments name it.
    pub key: Option<String>,
    /// From now; a day without it.
    pub expires_in_seconds: Option<f64>,
}

impl Wanted {
    /// Errors: what is no question.
    pub fn read(body: &[u8]) -> Result<Wanted, Error> {
        serde_json::from_slice(body).map_err(|e| {
            Error::BadRequest(format!("the body has to be {{\"tool\": …, \"arguments\": …}}: {e}"))
        })
    }
}

/// Asks in the name of `asker`. On disk before it returns.
///
/// Errors: those of `RequestApproval`; arguments that say a key twice.
pub async fn ask(store: &Arc<dyn Store>, asker: Asker, wanted: Wanted) -> Result<Answer, Error> {
    let text = wanted.arguments.as_deref().map_or("{}", RawValue::get);
    let arguments = canonical_value(text.as_bytes())
        .map_err(|e| Error::BadRequest(format!("the arguments are no JSON that can be told apart: {e}")))?;
    let expires_ms = match wanted.expires_in_seconds {
        None => EXPIRES_MS,
        // Beyond what is representable it saturates: never, for all that is known.
        Some(seconds) => (seconds * 1000.0).ceil() as i64,
    };
    let request = RequestApproval {
        asker,
        key: wanted.key,
        tool: wanted.tool,
        side_effect: wanted.side_effect.filter(|s| !s.is_empty()),
        arguments: Payload::encode(&arguments),
        expires_ms,
    };
    Ok(store.ask(request, Durability::Synced).await?)
}
