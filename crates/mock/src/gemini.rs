//! Gemini's `generateContent` and `streamGenerateContent`: rewrites requests into the shape shared by all
//! dialects, and writes answers.

use std::borrow::Cow;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    answer::{Answer, Content, Stop},
    request::Request,
};
use crate::refusal::Refusal;

/// Returns whether a path belongs to Gemini's API.
pub(super) fn is_path(path: &str) -> bool {
    path.starts_with("/v1beta/") || named(path).is_some()
}

/// Returns whether a path asks for a generated answer: `generateContent` or `streamGenerateContent`.
pub(super) fn asks_for_content(path: &str) -> bool {
    named(path).is_some_and(|(_, verb)| ["generateContent", "streamGenerateContent"].contains(&verb))
}

/// Splits `/v1beta/models/MODEL:VERB` into the model and the verb.
fn named(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix("/v1beta/models/").or(path.strip_prefix("/v1/models/"))?.split_once(':')
}

/// Rewrites the request in the shape shared by all dialects.
///
/// Errors: roles and members that the API does not know. A body that is not a JSON object is returned unchanged;
/// `Request::read` refuses it.
pub(super) fn expand<'b>(path: &str, query: &str, body: &'b [u8]) -> Result<Cow<'b, [u8]>, Refusal> {
    let Ok(mut whole) = serde_json::from_slice::<Value>(body) else { return Ok(body.into()) };
    let Some(object) = whole.as_object() else { return Ok(body.into()) };
    let unknown = ["model", "messages", "stream", "max_tokens", "n", "system"];
    if let Some(name) = unknown.into_iter().find(|name| object.contains_key(*name)) {
        return Err(Refusal::bad(format!("Unknown name {name:?}: cannot find field")));
    }
    let (model, verb) = named(path).unwrap_or_default();
    let stream = verb == "streamGenerateContent";
    let config = whole["generationConfig"].take();
    if config["maxOutputTokens"] == 0 {
        return Err(Refusal::bad("maxOutputTokens: wanted at least 1, had 0"));
    }
    let known = ["user", "model", "function"];
    let mut messages = Vec::new();
    for content in whole["contents"].as_array().into_iter().flatten() {
        let role = content["role"].as_str().unwrap_or("user");
        if !known.contains(&role) {
            return Err(Refusal::bad(format!("contents: wanted a role of {known:?}, had {role:?}")));
        }
        let role = if role == "model" { "assistant" } else { "user" };
        messages.push(json!({"role": role, "content": blocks(&content["parts"])}));
    }
    let tools: Vec<Value> = whole["tools"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|tool| tool["functionDeclarations"].as_array().cloned().unwrap_or_default())
        .map(|function| json!({"type": "function", "name": function["name"]}))
        .collect();
    let mut out = json!({
        "model": model,
        "messages": messages,
        "stream": stream,
        "array": stream && !query.split('&').any(|pair| pair == "alt=sse"),
        "max_tokens": config["maxOutputTokens"],
        "n": config["candidateCount"],
        "system": blocks(&whole["systemInstruction"]["parts"]),
    });
    if !tools.is_empty() {
        out["tools"] = tools.into();
    }
    if whole["toolConfig"]["functionCallingConfig"]["mode"] == "NONE" {
        out["tool_choice"] = "none".into();
    }
    if config["thinkingConfig"]["thinkingBudget"].as_i64().is_some_and(|budget| budget != 0) {
        out["thinking"] = json!({"type": "enabled"});
    }
    Ok(out.to_string().into_bytes().into())
}

fn blocks(parts: &Value) -> Value {
    let block = |part: &Value| match part["text"].as_str() {
        Some(text) => json!({"type": "text", "text": text}),
        None if part["functionResponse"].is_object() => json!({"type": "tool_result"}),
        None => json!({"type": "other"}),
    };
    parts.as_array().into_iter().flatten().map(block).collect()
}

/// Returns an answer as one JSON object of Gemini's API.
pub(super) fn whole(answer: &Answer<'_>) -> String {
    let part = match &answer.content {
        Content::Text(text) => json!({"text": text.text()}),
        Content::Tool { name, args } => function_call(name, args.text()),
    };
    chunk(answer, &part, true).to_string()
}

/// Returns an answer as the frames of a stream of Gemini's API: events, or the elements of one array.
pub(super) fn frames(request: &Request<'_>, answer: &Answer<'_>) -> Vec<Bytes> {
    let parts: Vec<Value> = match &answer.content {
        Content::Text(text) => text.pieces().map(|piece| json!({"text": piece})).collect(),
        Content::Tool { name, args } => vec![function_call(name, args.text())],
    };
    let parts = if parts.is_empty() { vec![json!({"text": ""})] } else { parts };
    let last = parts.len() - 1;
    let chunks = parts.iter().enumerate().map(|(n, part)| chunk(answer, part, n == last).to_string());
    if !request.is_array() {
        return chunks.map(|chunk| format!("data: {chunk}\r\n\r\n").into()).collect();
    }
    let frame = |(n, chunk): (usize, String)| {
        let (before, after) = (if n == 0 { "[" } else { ",\r\n" }, if n == last { "\n]\n" } else { "\n" });
        format!("{before}{chunk}{after}").into()
    };
    chunks.enumerate().map(frame).collect()
}

fn function_call(name: &str, args: &str) -> Value {
    // A text cut off by the cap is not an object any more; the API then has no arguments.
    let args: Value = serde_json::from_str(args).unwrap_or_else(|_| json!({}));
    json!({"functionCall": {"name": name, "args": args}})
}

fn chunk(answer: &Answer<'_>, part: &Value, is_last: bool) -> Value {
    let candidate = |index: u32| {
        let mut candidate = json!({"content": {"parts": [part], "role": "model"}, "index": index});
        if is_last {
            candidate["finishReason"] =
                if answer.stop == Stop::Length { "MAX_TOKENS" } else { "STOP" }.into();
        }
        candidate
    };
    let candidates: Vec<Value> = (0..answer.choices).map(candidate).collect();
    let usage = &answer.usage;
    let mut counts = json!({"promptTokenCount": usage.input_total()});
    if is_last {
        counts["candidatesTokenCount"] = (usage.output - usage.reasoning).into();
        if usage.reasoning > 0 {
            counts["thoughtsTokenCount"] = usage.reasoning.into();
        }
    }
    let output = if is_last { usage.output } else { 0 };
    counts["totalTokenCount"] = (usage.input_total() + output).into();
    json!({
        "candidates": candidates, "usageMetadata": counts, "modelVersion": answer.model, "responseId": answer.id,
    })
}

/// Returns an error's body in Gemini's shape.
pub(super) fn error(status: StatusCode, message: &str) -> String {
    let name = match status.as_u16() {
        400 => "INVALID_ARGUMENT",
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        _ => "INTERNAL",
    };
    json!({"error": {"code": status.as_u16(), "message": message, "status": name}}).to_string()
}

/// Returns the list of models in Gemini's shape.
pub(super) fn models(ids: &[&str]) -> String {
    let model = |id: &&str| json!({"name": format!("models/{id}"), "displayName": id, "supportedGenerationMethods": ["generateContent"]});
    json!({"models": ids.iter().map(model).collect::<Vec<_>>()}).to_string()
}

/// Returns the body that answers `countTokens`.
pub(super) fn counted(tokens: u64) -> String {
    json!({"totalTokens": tokens}).to_string()
}
