//! Answers in the shape of OpenAI's chat completions.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::answer::{Answer, Content, Stop};

/// Creation time of all answers, in seconds since the Unix epoch: constant, so that the same answer is the same bytes.
pub(super) const CREATED: u64 = 1_750_000_000;

/// Returns an answer as one JSON object of chat completions.
pub(super) fn whole(answer: &Answer<'_>) -> String {
    let (content, tool_calls) = match &answer.content {
        Content::Text(text) => (Some(text.text()), None),
        Content::Tool { name, args } => {
            let function = json!({"name": name, "arguments": args.text()});
            let call = json!({"id": call_id(answer), "type": "function", "function": function});
            (None, Some(json!([call])))
        }
    };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null, "annotations": []});
    if let Some(calls) = tool_calls {
        message["tool_calls"] = calls;
    }
    let finish_reason = finish_reason(answer.stop);
    let choice = |index: u32| {
        json!({
            "index": index, "message": message, "logprobs": null, "finish_reason": finish_reason,
        })
    };
    json!({
        "id": format!("chatcmpl-{}", answer.id),
        "object": "chat.completion",
        "created": CREATED,
        "model": answer.model,
        "choices": (0..answer.choices).map(choice).collect::<Vec<_>>(),
        "usage": usage(answer),
        "service_tier": service_tier(answer),
        "system_fingerprint": "fp_mock",
    })
    .to_string()
}

/// Returns an answer as the frames of a stream of chat completions, `[DONE]` last.
pub(super) fn frames(answer: &Answer<'_>) -> Vec<Bytes> {
    // Absent unless asked for; then null in all chunks but the last.
    let chunk = |choices: Value, usage: Value| -> Bytes {
        let mut chunk = json!({
            "id": format!("chatcmpl-{}", answer.id),
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": answer.model,
            "choices": choices,
            "service_tier": service_tier(answer),
            "system_fingerprint": "fp_mock",
        });
        if answer.includes_usage {
            chunk["usage"] = usage;
        }
        format!("data: {chunk}\n\n").into()
    };
    let mut frames = Vec::new();
    let mut to_all = |delta: Value, finish_reason: Option<&str>| {
        for index in 0..answer.choices {
            let choice =
                json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": finish_reason});
            frames.push(chunk(json!([choice]), Value::Null));
        }
    };

    match &answer.content {
        Content::Text(text) => {
            to_all(json!({"role": "assistant", "content": ""}), None);
            for piece in text.pieces() {
                to_all(json!({"content": piece}), None);
            }
        }
        Content::Tool { name, args } => {
            let function = json!({"name": name, "arguments": ""});
            let call = json!({"index": 0, "id": call_id(answer), "type": "function", "function": function});
            to_all(json!({"role": "assistant", "tool_calls": [call]}), None);
            for piece in args.pieces() {
                to_all(json!({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}), None);
            }
        }
    }
    to_all(json!({}), Some(finish_reason(answer.stop)));
    if answer.includes_usage {
        frames.push(chunk(json!([]), usage(answer)));
    }
    frames.push(Bytes::from_static(b"data: [DONE]\n\n"));
    frames
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
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}}).to_string()
}

/// Returns the error's body for an account without credit.
pub(super) fn no_credit(message: &str) -> String {
    let code = "insufficient_quota";
    json!({"error": {"message": message, "type": code, "param": null, "code": code}}).to_string()
}

/// Returns the error's body for a plan's usage limit, as the ChatGPT backend words it. `over_s`: end of the limit, in
/// seconds since the Unix epoch.
pub(super) fn usage_limit(message: &str, over_s: u64, limit: Duration) -> String {
    let error = json!({
        "type": "usage_limit_reached", "message": message, "resets_at": over_s, "resets_in_seconds": limit.as_secs(),
    });
    json!({"error": error}).to_string()
}

/// Returns the list of models in OpenAI's shape.
pub(super) fn models(ids: &[&str]) -> String {
    let model = |id: &&str| json!({"id": id, "object": "model", "created": CREATED, "owned_by": "mock"});
    json!({"object": "list", "data": ids.iter().map(model).collect::<Vec<_>>()}).to_string()
}

fn call_id(answer: &Answer<'_>) -> String {
    format!("call_{}", answer.id)
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

fn usage(answer: &Answer<'_>) -> Value {
    let usage = answer.usage;
    let mut told = json!({
        "prompt_tokens": usage.input_total(),
        "completion_tokens": usage.output,
        "total_tokens": usage.total(),
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    });
    if let Some(cost) = answer.manner.cost(usage.total()) {
        told["cost"] = cost.into();
    }
    told
}
