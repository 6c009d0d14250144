//! Answers in the shape of Anthropic's messages.

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;

use super::answer::{Answer, Content, Stop};

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event<'a> {
    MessageStart { message: Message<'a> },
    ContentBlockStart { index: usize, content_block: Block<'a> },
    Ping {},
    ContentBlockDelta { index: usize, delta: Delta<'a> },
    ContentBlockStop { index: usize },
    MessageDelta { delta: Ended, usage: SoFar },
    MessageStop {},
}

#[derive(Serialize)]
struct Message<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Block<'a>>,
    stop_reason: Option<&'static str>,
    stop_sequence: (),
    usage: Usage,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Thinking { thinking: &'a str, signature: &'a str },
    Text { text: &'a str },
    ToolUse { id: &'a str, name: &'a str, input: Input<'a> },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Input<'a> {
    Whole(&'a RawValue),
    /// Empty object: at the start of a stream, and in place of arguments that the output cap cut off, which are no
    /// JSON.
    Empty {},
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum Delta<'a> {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'a str },
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
}

#[derive(Serialize)]
struct Ended {
    stop_reason: &'static str,
    stop_sequence: (),
}

#[derive(Serialize)]
struct Usage {
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    cache_creation: CacheCreation,
    output_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_tool_use: Option<ServerToolUse>,
    service_tier: &'static str,
}

#[derive(Clone, Copy, Serialize)]
struct ServerToolUse {
    web_search_requests: u64,
    web_fetch_requests: u64,
}

/// Returns the uses of the provider's own tools; absent if there were none.
fn server_tool_use(answer: &Answer<'_>) -> Option<ServerToolUse> {
    let web_search_requests = answer.usage.web_searches;
    (web_search_requests > 0).then_some(ServerToolUse { web_search_requests, web_fetch_requests: 0 })
}

#[derive(Serialize)]
struct CacheCreation {
    ephemeral_5m_input_tokens: u64,
    ephemeral_1h_input_tokens: u64,
}

/// The usage of a `message_delta`: cumulative, so it replaces that of `message_start`.
#[derive(Serialize)]
struct SoFar {
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_tool_use: Option<ServerToolUse>,
}

#[derive(Serialize)]
struct OutputDetails {
    thinking_tokens: u64,
}

/// Returns an answer as one JSON object of Anthropic's API.
pub(super) fn whole(answer: &Answer<'_>) -> serde_json::Result<Bytes> {
    let (id, call_id, signature) = ids(answer);
    let mut content = Vec::new();
    if let Some(thinking) = &answer.thinking {
        content.push(Block::Thinking { thinking: thinking.text(), signature: &signature });
    }
    content.push(match &answer.content {
        Content::Text(text) => Block::Text { text: text.text() },
        Content::Tool { name, args } => {
            let input = serde_json::from_str(args.text()).map_or(Input::Empty {}, Input::Whole);
            Block::ToolUse { id: &call_id, name, input }
        }
    });
    let message = message(answer, &id, content, Some(stop_reason(answer.stop)), answer.usage.output);
    serde_json::to_vec(&message).map(Bytes::from)
}

/// Returns an answer as the frames of a stream of Anthropic's API, `message_stop` last.
pub(super) fn frames(answer: &Answer<'_>) -> serde_json::Result<Vec<Bytes>> {
    let (id, call_id, signature) = ids(answer);
    let mut frames = Vec::new();
    let mut send = |event: &Event<'_>| {
        frames.push(sse(event)?);
        Ok::<_, serde_json::Error>(())
    };

    // The real API reports a token or so of output at the start: a client that adds usages up bills too much.
    let message = message(answer, &id, Vec::new(), None, answer.usage.output.min(1));
    send(&Event::MessageStart { message })?;
    let mut index = 0;
    if let Some(thinking) = &answer.thinking {
        let content_block = Block::Thinking { thinking: "", signature: "" };
        send(&Event::ContentBlockStart { index, content_block })?;
        for thinking in thinking.pieces() {
            send(&Event::ContentBlockDelta { index, delta: Delta::Thinking { thinking } })?;
        }
        let delta = Delta::Signature { signature: &signature };
        send(&Event::ContentBlockDelta { index, delta })?;
        send(&Event::ContentBlockStop { index })?;
        index += 1;
    }
    let content_block = match &answer.content {
        Content::Text(_) => Block::Text { text: "" },
        Content::Tool { name, .. } => Block::ToolUse { id: &call_id, name, input: Input::Empty {} },
    };
    send(&Event::ContentBlockStart { index, content_block })?;
    send(&Event::Ping {})?;
    match &answer.content {
        Content::Text(text) => {
            for text in text.pieces() {
                send(&Event::ContentBlockDelta { index, delta: Delta::Text { text } })?;
            }
        }
        Content::Tool { args, .. } => {
            for partial_json in args.pieces() {
                send(&Event::ContentBlockDelta { index, delta: Delta::InputJson { partial_json } })?;
            }
        }
    }
    send(&Event::ContentBlockStop { index })?;
    let usage = answer.usage;
    send(&Event::MessageDelta {
        delta: Ended { stop_reason: stop_reason(answer.stop), stop_sequence: () },
        usage: SoFar {
            input_tokens: usage.input,
            cache_creation_input_tokens: usage.cache_write_5m + usage.cache_write_1h,
            cache_read_input_tokens: usage.cache_read,
            output_tokens: usage.output,
            output_tokens_details: OutputDetails { thinking_tokens: usage.reasoning },
            server_tool_use: server_tool_use(answer),
        },
    })?;
    send(&Event::MessageStop {})?;
    Ok(frames)
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
    let error = serde_json::json!({"type": kind, "message": message});
    serde_json::json!({"type": "error", "error": error, "request_id": "req_mock"}).to_string()
}

/// Returns the list of models in Anthropic's shape.
pub(super) fn models(ids: &[&str]) -> String {
    let model = |id: &&str| {
        serde_json::json!({
            "type": "model", "id": id, "display_name": id, "created_at": "2025-06-15T15:06:40Z", "lifecycle": "active",
        })
    };
    let data: Vec<_> = ids.iter().map(model).collect();
    serde_json::json!({"data": data, "has_more": false, "first_id": ids.first(), "last_id": ids.last()})
        .to_string()
}

/// Returns the response body for a `count_tokens` request.
pub(super) fn counted(input_tokens: u64) -> String {
    serde_json::json!({"input_tokens": input_tokens}).to_string()
}

/// Returns the ids of the message and its tool call, and the signature of its thinking.
fn ids(answer: &Answer<'_>) -> (String, String, String) {
    (format!("msg_{}", answer.id), format!("toolu_{}", answer.id), format!("sig_{}", answer.id))
}

fn message<'a>(
    answer: &Answer<'a>,
    id: &'a str,
    content: Vec<Block<'a>>,
    stop_reason: Option<&'static str>,
    output_tokens: u64,
) -> Message<'a> {
    let usage = Usage {
        input_tokens: answer.usage.input,
        cache_creation_input_tokens: answer.usage.cache_write_5m + answer.usage.cache_write_1h,
        cache_read_input_tokens: answer.usage.cache_read,
        cache_creation: CacheCreation {
            ephemeral_5m_input_tokens: answer.usage.cache_write_5m,
            ephemeral_1h_input_tokens: answer.usage.cache_write_1h,
        },
        output_tokens,
        // A stream reports it at its end.
        server_tool_use: stop_reason.and_then(|_| server_tool_use(answer)),
        service_tier: "standard",
    };
    Message {
        id,
        kind: "message",
        role: "assistant",
        model: answer.model,
        content,
        stop_reason,
        stop_sequence: (),
        usage,
    }
}

fn sse(event: &Event<'_>) -> serde_json::Result<Bytes> {
    let name = match event {
        Event::MessageStart { .. } => "message_start",
        Event::ContentBlockStart { .. } => "content_block_start",
        Event::Ping {} => "ping",
        Event::ContentBlockDelta { .. } => "content_block_delta",
        Event::ContentBlockStop { .. } => "content_block_stop",
        Event::MessageDelta { .. } => "message_delta",
        Event::MessageStop {} => "message_stop",
    };
    let mut frame = format!("event: {name}\ndata: ").into_bytes();
    serde_json::to_writer(&mut frame, event)?;
    frame.extend_from_slice(b"\n\n");
    Ok(frame.into())
}

fn stop_reason(stop: Stop) -> &'static str {
    match stop {
        Stop::End => "end_turn",
        Stop::Tool => "tool_use",
        Stop::Length => "max_tokens",
    }
}
