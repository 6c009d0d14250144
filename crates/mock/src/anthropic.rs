//! Answers in the shape of Anthropic's messages.

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::answer::{Answer, Content, Stop};

/// Returns an answer as one JSON object of Anthropic's API.
pub(super) fn whole(answer: &Answer<'_>) -> String {
    let mut content = Vec::new();
    if let Some(thinking) = &answer.thinking {
        content
            .push(json!({"type": "thinking", "thinking": thinking.text(), "signature": signature(answer)}));
    }
    content.push(match &answer.content {
        Content::Text(text) => json!({"type": "text", "text": text.text()}),
        // Arguments that the output cap cut off are no JSON.
        Content::Tool { name, args } => {
            tool_use(answer, name, serde_json::from_str(args.text()).unwrap_or_else(|_| json!({})))
        }
    });
    message(answer, content, Some(stop_reason(answer.stop)), answer.usage.output).to_string()
}

/// Returns an answer as the frames of a stream of Anthropic's API, `message_stop` last.
pub(super) fn frames(answer: &Answer<'_>) -> Vec<Bytes> {
    let mut frames = Vec::new();
    let mut send = |event: Value| {
        let name = event["type"].as_str().unwrap_or_default();
        frames.push(format!("event: {name}\ndata: {event}\n\n").into());
    };

    // The real API reports a token or so of output at the start: a client that adds usages up bills too much.
    let message = message(answer, Vec::new(), None, answer.usage.output.min(1));
    send(json!({"type": "message_start", "message": message}));
    let mut index = 0;
    let start = |index: usize, block: Value| {
        json!({
            "type": "content_block_start", "index": index, "content_block": block,
        })
    };
    let delta =
        |index: usize, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let stop = |index: usize| json!({"type": "content_block_stop", "index": index});
    if let Some(thinking) = &answer.thinking {
        send(start(index, json!({"type": "thinking", "thinking": "", "signature": ""})));
        for piece in thinking.pieces() {
            send(delta(index, json!({"type": "thinking_delta", "thinking": piece})));
        }
        send(delta(index, json!({"type": "signature_delta", "signature": signature(answer)})));
        send(stop(index));
        index += 1;
    }
    send(start(
        index,
        match &answer.content {
            Content::Text(_) => json!({"type": "text", "text": ""}),
            Content::Tool { name, .. } => tool_use(answer, name, json!({})),
        },
    ));
    send(json!({"type": "ping"}));
    match &answer.content {
        Content::Text(text) => {
            for piece in text.pieces() {
                send(delta(index, json!({"type": "text_delta", "text": piece})));
            }
        }
        Content::Tool { args, .. } => {
            for piece in args.pieces() {
                send(delta(index, json!({"type": "input_json_delta", "partial_json": piece})));
            }
        }
    }
    send(stop(index));
    // Cumulative: it replaces the usage of `message_start`.
    let mut usage = json!({
        "input_tokens": answer.usage.input,
        "cache_creation_input_tokens": answer.usage.cache_write_5m + answer.usage.cache_write_1h,
        "cache_read_input_tokens": answer.usage.cache_read,
        "output_tokens": answer.usage.output,
        "output_tokens_details": {"thinking_tokens": answer.usage.reasoning},
    });
    add_searches(answer, &mut usage);
    let ended = json!({"stop_reason": stop_reason(answer.stop), "stop_sequence": null});
    send(json!({"type": "message_delta", "delta": ended, "usage": usage}));
    send(json!({"type": "message_stop"}));
    frames
}

/// Returns an error's body in Anthropic's shape.
pub(super) fn error(status: StatusCode, message: &str) -> String {
    let kind = match status.as_u16() {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    };
    let error = json!({"type": kind, "message": message});
    json!({"type": "error", "error": error, "request_id": "req_mock"}).to_string()
}

/// Returns the list of models in Anthropic's shape.
pub(super) fn models(ids: &[&str]) -> String {
    let model = |id: &&str| {
        json!({
            "type": "model", "id": id, "display_name": id, "created_at": "2025-06-15T15:06:40Z", "lifecycle": "active",
        })
    };
    let data: Vec<_> = ids.iter().map(model).collect();
    json!({"data": data, "has_more": false, "first_id": ids.first(), "last_id": ids.last()}).to_string()
}

/// Returns the response body for a `count_tokens` request.
pub(super) fn counted(input_tokens: u64) -> String {
    json!({"input_tokens": input_tokens}).to_string()
}

fn signature(answer: &Answer<'_>) -> String {
    format!("sig_{}", answer.id)
}

fn tool_use(answer: &Answer<'_>, name: &str, input: Value) -> Value {
    json!({"type": "tool_use", "id": format!("toolu_{}", answer.id), "name": name, "input": input})
}

/// Adds the uses of the provider's own tools to a usage, if there were any.
fn add_searches(answer: &Answer<'_>, usage: &mut Value) {
    if answer.usage.web_searches > 0 {
        usage["server_tool_use"] =
            json!({"web_search_requests": answer.usage.web_searches, "web_fetch_requests": 0});
    }
}

fn message(answer: &Answer<'_>, content: Vec<Value>, stop_reason: Option<&str>, output_tokens: u64) -> Value {
    let mut usage = json!({
        "input_tokens": answer.usage.input,
        "cache_creation_input_tokens": answer.usage.cache_write_5m + answer.usage.cache_write_1h,
        "cache_read_input_tokens": answer.usage.cache_read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": answer.usage.cache_write_5m,
            "ephemeral_1h_input_tokens": answer.usage.cache_write_1h,
        },
        "output_tokens": output_tokens,
    });
    // A stream reports it at its end.
    if stop_reason.is_some() {
        add_searches(answer, &mut usage);
    }
    usage["service_tier"] = "standard".into();
    json!({
        "id": format!("msg_{}", answer.id), "type": "message", "role": "assistant", "model": answer.model,
        "content": content, "stop_reason": stop_reason, "stop_sequence": null, "usage": usage,
    })
}

fn stop_reason(stop: Stop) -> &'static str {
    match stop {
        Stop::End => "end_turn",
        Stop::Tool => "tool_use",
        Stop::Length => "max_tokens",
    }
}
