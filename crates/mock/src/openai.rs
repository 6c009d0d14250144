//! Answers in the shape of OpenAI's chat completions.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;

use super::answer::{Answer, Content, Stop};

/// Creation time of all answers, in seconds since the Unix epoch: constant, so that the same answer is the same bytes.
pub(super) const CREATED: u64 = 1_750_000_000;

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    usage: Usage,
    service_tier: &'a str,
    system_fingerprint: &'static str,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    message: Message<'a>,
    logprobs: (),
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: Option<&'a str>,
    refusal: (),
    annotations: [(); 0],
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[ToolCall<'a>; 1]>,
}

#[derive(Clone, Copy, Serialize)]
struct ToolCall<'a> {
    /// Index of the call, present only in streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: Function<'a>,
}

#[derive(Clone, Copy, Serialize)]
struct Function<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

#[derive(Clone, Copy, Serialize)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
}

#[derive(Clone, Copy, Serialize)]
struct PromptDetails {
    cached_tokens: u64,
    audio_tokens: u64,
}

#[derive(Clone, Copy, Serialize)]
struct CompletionDetails {
    reasoning_tokens: u64,
    audio_tokens: u64,
    accepted_prediction_tokens: u64,
    rejected_prediction_tokens: u64,
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [ChunkChoice<'a>],
    service_tier: &'a str,
    system_fingerprint: &'static str,
    /// Absent unless asked for; then null in all chunks but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: u32,
    delta: Delta<'a>,
    logprobs: (),
    finish_reason: Option<&'static str>,
}

#[derive(Clone, Copy, Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[ToolCall<'a>; 1]>,
}

/// Returns an answer as one JSON object of chat completions.
pub(super) fn whole(answer: &Answer<'_>) -> serde_json::Result<Bytes> {
    let call_id = format!("call_{}", answer.id);
    let choice = |index| {
        let (content, tool_calls) = match &answer.content {
            Content::Text(text) => (Some(text.text()), None),
            Content::Tool { name, args } => (
                None,
                Some([ToolCall {
                    index: None,
                    id: Some(&call_id),
                    kind: Some("function"),
                    function: Function { name: Some(name), arguments: args.text() },
                }]),
            ),
        };
        let message = Message { role: "assistant", content, refusal: (), annotations: [], tool_calls };
        Choice { index, message, logprobs: (), finish_reason: finish_reason(answer.stop) }
    };
    let completion = Completion {
        id: &format!("chatcmpl-{}", answer.id),
        object: "chat.completion",
        created: CREATED,
        model: answer.model,
        choices: (0..answer.choices).map(choice).collect(),
        usage: usage(answer),
        service_tier: service_tier(answer),
        system_fingerprint: "fp_mock",
    };
    serde_json::to_vec(&completion).map(Bytes::from)
}

/// Returns an answer as the frames of a stream of chat completions, `[DONE]` last.
pub(super) fn frames(answer: &Answer<'_>) -> serde_json::Result<Vec<Bytes>> {
    let id = format!("chatcmpl-{}", answer.id);
    let call_id = format!("call_{}", answer.id);
    let chunk = |choices: &[ChunkChoice<'_>], usage| {
        sse(&Chunk {
            id: &id,
            object: "chat.completion.chunk",
            created: CREATED,
            model: answer.model,
            choices,
            service_tier: service_tier(answer),
            system_fingerprint: "fp_mock",
            usage,
        })
    };
    let mut frames = Vec::new();
    let mut to_all = |delta: Delta<'_>, finish_reason| {
        for index in 0..answer.choices {
            let choice = ChunkChoice { index, delta, logprobs: (), finish_reason };
            frames.push(chunk(&[choice], answer.includes_usage.then_some(None))?);
        }
        Ok::<_, serde_json::Error>(())
    };

    match &answer.content {
        Content::Text(text) => {
            to_all(Delta { role: Some("assistant"), content: Some(""), tool_calls: None }, None)?;
            for piece in text.pieces() {
                to_all(Delta { content: Some(piece), ..Delta::default() }, None)?;
            }
        }
        Content::Tool { name, args } => {
            let function = Function { name: Some(name), arguments: "" };
            let call = ToolCall { index: Some(0), id: Some(&call_id), kind: Some("function"), function };
            to_all(Delta { role: Some("assistant"), content: None, tool_calls: Some([call]) }, None)?;
            for piece in args.pieces() {
                let function = Function { name: None, arguments: piece };
                let call = ToolCall { index: Some(0), id: None, kind: None, function };
                to_all(Delta { tool_calls: Some([call]), ..Delta::default() }, None)?;
            }
        }
    }
    to_all(Delta::default(), Some(finish_reason(answer.stop)))?;
    if answer.includes_usage {
        frames.push(chunk(&[], Some(Some(usage(answer))))?);
    }
    frames.push(Bytes::from_static(b"data: [DONE]\n\n"));
    Ok(frames)
}

/// Returns an error's body in OpenAI's shape.
pub(super) fn error(status: StatusCode, message: &str) -> String {
    let (kind, code) = match status.as_u16() {
        401 => ("invalid_request_error", Some("invalid_api_key")),
        404 => ("invalid_request_error", Some("not_found")),
        429 => ("requests", Some("rate_limit_exceeded")),
        400..=499 => ("invalid_request_error", None),
        _ => ("server_error", None),
    };
    serde_json::json!({"error": {"message": message, "type": kind, "param": null, "code": code}}).to_string()
}

/// Returns the error's body for an account without credit.
pub(super) fn no_credit(message: &str) -> String {
    let code = "insufficient_quota";
    serde_json::json!({"error": {"message": message, "type": code, "param": null, "code": code}}).to_string()
}

/// Returns the error's body for a plan's usage limit, as the ChatGPT backend words it. `over_s`: end of the limit, in
/// seconds since the Unix epoch.
pub(super) fn usage_limit(message: &str, over_s: u64, limit: Duration) -> String {
    let error = serde_json::json!({
        "type": "usage_limit_reached", "message": message, "resets_at": over_s, "resets_in_seconds": limit.as_secs(),
    });
    serde_json::json!({"error": error}).to_string()
}

/// Returns the list of models in OpenAI's shape.
pub(super) fn models(ids: &[&str]) -> String {
    let model =
        |id: &&str| serde_json::json!({"id": id, "object": "model", "created": CREATED, "owned_by": "mock"});
    serde_json::json!({"object": "list", "data": ids.iter().map(model).collect::<Vec<_>>()}).to_string()
}

fn sse(chunk: &Chunk<'_>) -> serde_json::Result<Bytes> {
    let mut frame = b"data: ".to_vec();
    serde_json::to_writer(&mut frame, chunk)?;
    frame.extend_from_slice(b"\n\n");
    Ok(frame.into())
}

fn finish_reason(stop: Stop) -> &'static str {
    match stop {
        Stop::End => "stop",
        Stop::Tool => "tool_calls",
        Stop::Length => "length",
    }
}

/// Returns the service tier that was billed, which is never `auto`.
pub(super) fn service_tier<'a>(answer: &Answer<'a>) -> &'a str {
    match answer.service_tier {
        tier @ ("flex" | "priority") => tier,
        _ => "default",
    }
}

fn usage(answer: &Answer<'_>) -> Usage {
    let usage = answer.usage;
    Usage {
        prompt_tokens: usage.input_total(),
        completion_tokens: usage.output,
        total_tokens: usage.total(),
        prompt_tokens_details: PromptDetails { cached_tokens: usage.cache_read, audio_tokens: 0 },
        completion_tokens_details: CompletionDetails {
            reasoning_tokens: usage.reasoning,
            audio_tokens: 0,
            accepted_prediction_tokens: 0,
            rejected_prediction_tokens: 0,
        },
        cost: answer.manner.cost(usage.total()),
    }
}
