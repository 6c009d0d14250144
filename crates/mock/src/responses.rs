//! Answers in the shape of OpenAI's responses.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    answer::{Answer, Content, Stop},
    openai::{CREATED, service_tier},
    request::Request,
};

/// Builds the finished response, as JSON. The caller sends it, and stores it for later requests that continue it.
pub(super) fn response(request: &Request<'_>, answer: &Answer<'_>) -> Value {
    let (status, incomplete) = match answer.stop {
        Stop::Length => ("incomplete", json!({"reason": "max_output_tokens"})),
        Stop::End | Stop::Tool => ("completed", Value::Null),
    };
    let usage = &answer.usage;
    let usage = json!({
        "input_tokens": usage.input_total(),
        "input_tokens_details": {"cached_tokens": usage.cache_read},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.total(),
    });
    with_status(request, answer, status, incomplete, Value::Array(output(request, answer)), usage)
}

/// Returns an answer as the frames of a stream of OpenAI's responses; the terminal event is the last.
pub(super) fn frames(request: &Request<'_>, answer: &Answer<'_>) -> Vec<Bytes> {
    let mut events = Events::default();
    let begun = with_status(request, answer, "in_progress", Value::Null, json!([]), Value::Null);
    events.push("response.created", json!({"response": begun}));
    events.push("response.in_progress", json!({"response": begun}));
    let output = output(request, answer);
    for (index, item) in output.iter().enumerate() {
        events.item(index, item, &answer.content);
    }
    let end = response(request, answer);
    let kind = match answer.stop {
        Stop::Length => "response.incomplete",
        Stop::End | Stop::Tool => "response.completed",
    };
    events.push(kind, json!({"response": end}));
    events.frames
}

fn with_status(
    request: &Request<'_>,
    answer: &Answer<'_>,
    status: &str,
    incomplete: Value,
    output: Value,
    usage: Value,
) -> Value {
    let asked = &request.wire;
    json!({
        "id": format!("resp_{}", answer.id),
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "background": false,
        "error": null,
        "incomplete_details": incomplete,
        "instructions": null,
        "max_output_tokens": asked.max_output_tokens,
        "metadata": {},
        "model": answer.model,
        "output": output,
        "parallel_tool_calls": true,
        "previous_response_id": asked.previous_response_id,
        "reasoning": {"effort": asked.effort(), "summary": null},
        "service_tier": service_tier(answer),
        "store": asked.store.unwrap_or(true),
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage,
        "user": null,
    })
}

fn output(request: &Request<'_>, answer: &Answer<'_>) -> Vec<Value> {
    let id = &answer.id;
    let mut items = Vec::new();
    if answer.usage.reasoning > 0 {
        items.push(json!({"id": format!("rs_{id}"), "type": "reasoning", "summary": []}));
    }
    let status = if answer.stop == Stop::Length { "incomplete" } else { "completed" };
    items.push(match &answer.content {
        Content::Text(text) => json!({
            "id": format!("msg_{id}"), "type": "message", "status": status, "role": "assistant",
            "content": [part(text.text())],
        }),
        Content::Tool { name, args } if request.is_custom(name) => json!({
            "id": format!("ctc_{id}"), "type": "custom_tool_call", "status": status,
            "call_id": format!("call_{id}"), "name": name, "input": args.text(),
        }),
        Content::Tool { name, args } => {
            let mut item = json!({
                "id": format!("fc_{id}"), "type": "function_call", "status": status,
                "call_id": format!("call_{id}"), "name": name, "arguments": args.text(),
            });
            if let Some((namespace, name)) = name.split_once('/') {
                (item["namespace"], item["name"]) = (namespace.into(), name.into());
            }
            item
        }
    });
    items
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "annotations": [], "logprobs": [], "text": text})
}

/// Events of a stream, numbered.
#[derive(Default)]
struct Events {
    frames: Vec<Bytes>,
}

impl Events {
    fn push(&mut self, kind: &str, members: Value) {
        let event = and(&json!({"type": kind, "sequence_number": self.frames.len()}), members);
        self.frames.push(format!("event: {kind}\ndata: {event}\n\n").into());
    }

    /// Writes the events of one item of the output: added empty, filled, done.
    fn item(&mut self, index: usize, item: &Value, content: &Content) {
        let mut begun = item.clone();
        begun["status"] = "in_progress".into();
        let id = &item["id"];
        let text = match item["type"].as_str().unwrap_or_default() {
            "message" => Some("content"),
            "function_call" => Some("arguments"),
            "custom_tool_call" => Some("input"),
            _ => None,
        };
        let Some(text) = text else {
            self.push("response.output_item.added", json!({"output_index": index, "item": item}));
            self.push("response.output_item.done", json!({"output_index": index, "item": item}));
            return;
        };
        begun[text] = if text == "content" { json!([]) } else { "".into() };
        self.push("response.output_item.added", json!({"output_index": index, "item": begun}));
        let at = json!({"item_id": id, "output_index": index});
        match content {
            Content::Text(tokens) => {
                let at = and(&at, json!({"content_index": 0}));
                self.push("response.content_part.added", and(&at, json!({"part": part("")})));
                for piece in tokens.pieces() {
                    let delta = json!({"delta": piece, "logprobs": []});
                    self.push("response.output_text.delta", and(&at, delta));
                }
                let whole = tokens.text();
                self.push("response.output_text.done", and(&at, json!({"text": whole, "logprobs": []})));
                self.push("response.content_part.done", and(&at, json!({"part": part(whole)})));
            }
            Content::Tool { name, args } => {
                let (kind, name) = match text {
                    "input" => ("response.custom_tool_call_input", json!({})),
                    _ => ("response.function_call_arguments", json!({"name": name})),
                };
                for piece in args.pieces() {
                    self.push(&format!("{kind}.delta"), and(&at, json!({"delta": piece})));
                }
                self.push(&format!("{kind}.done"), and(&and(&at, name), json!({text: args.text()})));
            }
        }
        self.push("response.output_item.done", json!({"output_index": index, "item": item}));
    }
}

/// Returns `one` with the members of `more` added.
fn and(one: &Value, more: Value) -> Value {
    let mut both = one.clone();
    if let (Value::Object(both), Value::Object(more)) = (&mut both, more) {
        both.extend(more);
    }
    both
}
