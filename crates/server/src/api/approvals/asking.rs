//! Request for an approval, and the wait for a person's decision.

use std::{sync::Arc, time::Duration};

use outlast_core::{
    engine::approval::{Asker, RequestApproval},
    journal::{
        approval::{Answer, EXPIRES_MS, Status},
        payload::Payload,
    },
    store::{self, Ask as _, Durability, News, Store},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::{dialect::canonical_value, hints::Hints, state::Error};

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

/// Interval between two looks at an approval that nobody has decided.
const LOOK: Duration = Duration::from_millis(100);

/// Waits until a person has decided on an approval, or it has expired, or until `until`. Returns the newest answer.
pub async fn decided(
    store: &dyn Store,
    hints: &Arc<Hints>,
    mut answer: Answer,
    until: Instant,
) -> Result<Answer, store::Error> {
    // A decision is an event.
    let mut ear = hints.ear(News::EVENTS);
    while let (Status::Pending, Some(id)) = (answer.status, answer.id) {
        let (entry, now) = (store.entry(id.run, id.seq)?, store.now()?);
        answer = entry.and_then(|e| Answer::of(&e, now)).unwrap_or(answer);
        if answer.status != Status::Pending || Instant::now() >= until {
            break;
        }
        let _ = ear.pause(LOOK).await;
    }
    Ok(answer)
}
