//! Dialects of the LLM APIs: pure functions from bytes to facts and back. No I/O.
//!
//! `route` says whether a path costs money and who understands it. A `Dialect` reads a request into the
//! facts that admission needs, changes its body byte-surgically, and reads answers: whole or frame by frame.

pub mod answer;
pub mod anthropic_messages;
pub mod bound;
pub mod canonical;
pub mod conversation;
mod cost_field;
pub mod gemini;
pub mod json_array;
pub mod json_spans;
pub mod json_text;
pub(crate) mod lenient;
pub mod openai_chat;
pub mod openai_embeddings;
pub mod openai_responses;
mod outage;
mod plan;
pub mod prompt;
pub mod provider;
mod rate_limits;
pub mod refusal;
pub mod request;
pub mod route;
pub mod sse;
pub mod talk;
pub mod told_time;
mod usage_limit;

use lenient::parse_json;
use serde_json::Value;

pub use answer::{AnswerStream, Frame, FrameKind, Outcome, UpstreamError};
pub use canonical::{canonical, canonical_value};
pub use cost_field::{BadCostField, CostField};
pub use outage::{outage, patience_ms};
pub use plan::{account, plan_windows};
pub use provider::Upstream;
pub use rate_limits::rate_limits;
pub use refusal::{error_element, error_frame, refusal_body, usage_limit_body};
pub use request::{BadRequest, Request};
pub use route::{HeaderFacts, Route, deployment, is_geminis, route};
pub use usage_limit::usage_limit;

/// Metered endpoint of one LLM API: a row of facts, and of functions that read its bodies.
#[derive(Debug)]
pub struct Dialect {
    /// Name of the dialect in the journal, such as `openai.chat`.
    pub name: &'static str,
    pub upstream: Upstream,
    /// Whether the upstream stores answers, which a later request can name by their ids.
    pub keeps_answers: bool,
    /// Parses a request body, decoded (not compressed) and sent to a target (path and query), in one pass.
    ///
    /// Errors name the field. Mistakes that the upstream itself refuses at no cost (an unknown role, a temperature out
    /// of range) are not checked here.
    pub parse: fn(&str, &[u8]) -> Result<Request, BadRequest>,
    /// Reads the facts of a whole JSON answer, success or error.
    pub read: fn(&Value) -> Outcome,
    /// Makes a reader for the event stream that answers a request.
    pub read_stream: fn(&Request) -> AnswerStream,
}

impl Dialect {
    /// Reads the facts of a whole answer. A body that is not JSON gives an empty outcome.
    pub fn read_json(&self, body: &[u8]) -> Outcome {
        (self.read)(&parse_json(body).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) static DIALECTS: [&Dialect; 5] = [
        &openai_chat::DIALECT,
        &openai_responses::DIALECT,
        &openai_embeddings::DIALECT,
        &anthropic_messages::DIALECT,
        &gemini::DIALECT,
    ];

    #[test]
    fn every_dialect_has_a_name_of_its_own() {
        for dialect in DIALECTS {
            assert_eq!(
                DIALECTS.iter().filter(|other| other.name == dialect.name).count(),
                1,
                "{}",
                dialect.name
            );
        }
    }

    /// The events that providers and gateways send while there is nothing to tell, and the smallest that tell something.
    #[test]
    fn an_event_gets_on_if_it_carries_a_part_of_the_answer() {
        let request = Request { choices: 1, ..Request::default() };
        let kinds = |dialect: &Dialect, text: &str| {
            let frames = (dialect.read_stream)(&request).push(text.to_owned().into());
            frames.into_iter().filter_map(|frame| frame.kind).collect::<Vec<_>>()
        };
        let chat = |delta: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\n\n");
        let messages = |event: &str| format!("data: {event}\n\n");
        let gemini = |parts: &str| {
            format!("data: {{\"candidates\":[{{\"content\":{{\"role\":\"model\",\"parts\":{parts}}}}}]}}\n\n")
        };
        let (c, r) = (&openai_chat::DIALECT, &openai_responses::DIALECT);
        let (m, g) = (&anthropic_messages::DIALECT, &gemini::DIALECT);
        for (dialect, event) in [
            (c, ": keepalive\n\n".to_owned()),
            (c, chat("{}")),
            (c, chat(r#"{"content":""}"#)),
            (c, chat(r#"{"role":"assistant","content":"","tool_calls":[]}"#)),
            (c, chat(r#"{"tool_calls":[{"index":0,"type":"function","function":{"arguments":""}}]}"#)),
            (c, "data: {\"choices\":[]}\n\n".to_owned()),
            (m, "event: ping\ndata: {\"type\":\"ping\"}\n\n".to_owned()),
            (m, messages(r#"{"type":"keepalive"}"#)),
            (
                m,
                messages(
                    r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}"#,
                ),
            ),
            (r, messages(r#"{"type":"keepalive","sequence_number":3}"#)),
            (r, messages(r#"{"type":"response.in_progress","response":{"id":"resp_1","model":"m"}}"#)),
            (
                r,
                messages(
                    r#"{"type":"response.output_text.delta","item_id":"m","delta":"","obfuscation":"x"}"#,
                ),
            ),
            (g, gemini(r#"[{"text":""}]"#)),
            (g, gemini("[]")),
        ] {
            assert_eq!(kinds(dialect, &event), [FrameKind::Ping], "{event}");
        }
        for (dialect, event) in [
            (c, chat(r#"{"content":" "}"#)),
            (c, chat(r#"{"reasoning_content":"a"}"#)),
            (c, chat(r#"{"tool_calls":[{"index":0,"function":{"name":"look","arguments":""}}]}"#)),
            (m, messages(r#"{"type":"message_start","message":{"id":"m"}}"#)),
            (
                m,
                messages(
                    r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
                ),
            ),
            (
                m,
                messages(
                    r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"a"}}"#,
                ),
            ),
            (r, messages(r#"{"type":"response.output_text.delta","item_id":"m","delta":"a"}"#)),
            (r, messages(r#"{"type":"response.web_search_call.searching","item_id":"ws_1"}"#)),
            (g, gemini(r#"[{"text":"a"}]"#)),
            (g, gemini(r#"[{"inlineData":{"data":"aGk="}}]"#)),
        ] {
            assert_eq!(kinds(dialect, &event), [FrameKind::Data], "{event}");
        }
    }
}
