//! Requests and answers as a conversation: who says what, for a person to read.
//!
//! All dialects are recognised by their shapes, because a journal is read long after the request was routed. What has no
//! known shape is shown by its size: nothing is left out without a word.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    lenient::parse_json,
    sse::{Event, Framer},
};

/// Turn of a conversation: one speaker's message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Role as the dialect names it: `system`, `user`, `assistant`, `tool`, `model`.
    pub role: String,
    pub parts: Vec<Part>,
}

/// Part of a turn, such as a text or a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Text(String),
    Thinking(String),
    /// Tool call that the model makes. `input`: JSON text, or plain text. `id` is empty if the dialect has none.
    Call {
        id: String,
        name: String,
        input: String,
    },
    /// Result of a tool call, as text. `id`: the call's, empty if the dialect has none.
    Result {
        id: String,
        text: String,
    },
    /// Part that is no text: an image, a file, sound or an unknown type (`what`), and its size in bytes.
    Other {
        what: String,
        bytes: usize,
    },
}

/// Returns the turns of a request's body, in the body's order.
pub fn request(body: &Value) -> Vec<Turn> {
    let mut turns = Vec::new();
    for key in ["system", "instructions", "systemInstruction", "system_instruction"] {
        let parts = parts(if body[key]["parts"].is_array() { &body[key]["parts"] } else { &body[key] });
        if !parts.is_empty() {
            turns.push(Turn { role: "system".into(), parts });
        }
    }
    for message in items(&body["messages"]).chain(items(&body["contents"])) {
        turns.push(message_of(message, "user"));
    }
    match &body["input"] {
        Value::Array(input) => turns.extend(input.iter().map(|item| message_of(item, "user"))),
        Value::String(text) => turns.push(said("user", text)),
        _ => {}
    }
    turns
}

/// Returns the names of the tools that a request offers.
pub fn tools(body: &Value) -> Vec<String> {
    let of_gemini = items(&body["tools"]).flat_map(|tool| items(&tool["functionDeclarations"]));
    let name = |tool: &Value| {
        let names = [&tool["name"], &tool["function"]["name"], &tool["type"]];
        names.into_iter().find_map(Value::as_str).map(str::to_owned)
    };
    items(&body["tools"]).chain(of_gemini).filter_map(name).collect()
}

/// Returns the turns of an answer's body, streamed or whole.
pub fn answer(body: &[u8]) -> Vec<Turn> {
    let whole = body.trim_ascii_start();
    if whole.starts_with(b"{") || whole.starts_with(b"[") {
        let value: Value = parse_json(body).unwrap_or_default();
        let chunks = value.as_array().cloned().unwrap_or_else(|| vec![value]);
        return joined(chunks.iter().flat_map(of_whole));
    }
    let mut framer = Framer::default();
    let mut events = framer.push(bytes::Bytes::copy_from_slice(body));
    events.push(framer.finish().0);
    let data = events.iter().map(|event| Event::read(event).data.unwrap_or_default());
    let mut stream = Stream::default();
    for event in data.filter_map(|data| parse_json(&data)) {
        stream.take(&event);
    }
    stream.turns()
}

/// Turns of an answer that is one JSON document.
fn of_whole(value: &Value) -> Vec<Turn> {
    let mut turns: Vec<Turn> =
        items(&value["choices"]).map(|choice| message_of(&choice["message"], "assistant")).collect();
    turns.extend(items(&value["candidates"]).map(|candidate| message_of(&candidate["content"], "model")));
    turns.extend(items(&value["output"]).map(|item| message_of(item, "assistant")));
    if value["content"].is_array() {
        turns.push(message_of(value, "assistant"));
    }
    if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
        turns.push(said("error", error["message"].as_str().unwrap_or(&error.to_string())));
    }
    turns
}

/// An answer that is put together from the events of a stream.
#[derive(Default)]
struct Stream {
    /// Parts by their place in the stream.
    parts: BTreeMap<(u64, u64), Part>,
    /// Turns that the stream delivered complete.
    whole: Vec<Turn>,
}

impl Stream {
    fn take(&mut self, event: &Value) {
        let index = event["index"].as_u64().unwrap_or_default();
        match event["type"].as_str() {
            Some("content_block_start") => {
                let block = parts(&Value::Array(vec![event["content_block"].clone()]));
                self.parts.extend(block.into_iter().map(|part| ((0, index), part)));
            }
            Some("content_block_delta") => {
                let delta = &event["delta"];
                self.add((0, index), &delta["text"], Part::Text);
                self.add((0, index), &delta["thinking"], Part::Thinking);
                self.add_input((0, index), &delta["partial_json"]);
            }
            Some("response.completed" | "response.incomplete" | "response.failed") => {
                self.whole = of_whole(&event["response"]);
            }
            Some("error") => self.whole.extend(of_whole(event)),
            Some(_) => {}
            None if event["candidates"].is_array() => {
                self.whole = joined(std::mem::take(&mut self.whole).into_iter().chain(of_whole(event)));
            }
            None => items(&event["choices"]).for_each(|choice| self.take_choice(choice)),
        }
    }

    /// Takes a chunk of OpenAI's chat completions.
    fn take_choice(&mut self, choice: &Value) {
        let (at, delta) = (choice["index"].as_u64().unwrap_or_default() * 1000, &choice["delta"]);
        self.add((at, 0), &delta["reasoning_content"], Part::Thinking);
        self.add((at, 1), &delta["content"], Part::Text);
        for call in items(&delta["tool_calls"]) {
            let place = (at, 2 + call["index"].as_u64().unwrap_or_default());
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            self.parts.entry(place).or_insert_with(|| Part::Call {
                id: text(&call["id"]),
                name: text(&call["function"]["name"]),
                input: String::new(),
            });
            self.add_input(place, &call["function"]["arguments"]);
        }
    }

    fn add(&mut self, place: (u64, u64), more: &Value, new: fn(String) -> Part) {
        let Some(more) = more.as_str().filter(|more| !more.is_empty()) else { return };
        match self.parts.entry(place).or_insert_with(|| new(String::new())) {
            Part::Text(text) | Part::Thinking(text) => text.push_str(more),
            _ => {}
        }
    }

    fn add_input(&mut self, place: (u64, u64), more: &Value) {
        if let (Some(more), Some(Part::Call { input, .. })) = (more.as_str(), self.parts.get_mut(&place)) {
            // A block begins with an empty object, which its pieces replace.
            if input == "{}" {
                input.clear();
            }
            input.push_str(more);
        }
    }

    fn turns(self) -> Vec<Turn> {
        let mut turns: BTreeMap<u64, Turn> = BTreeMap::new();
        for ((choice, _), part) in self.parts {
            let turn = turns.entry(choice).or_default();
            turn.role = "assistant".into();
            turn.parts.push(part);
        }
        turns.into_values().chain(self.whole).collect()
    }
}

/// Joins neighbouring turns of the same role, and neighbouring texts within a turn: a stream may cut both
/// anywhere.
fn joined(turns: impl Iterator<Item = Turn>) -> Vec<Turn> {
    let mut out: Vec<Turn> = Vec::new();
    for turn in turns {
        match out.last_mut().filter(|last| last.role == turn.role) {
            Some(last) => {
                for part in turn.parts {
                    match (last.parts.last_mut(), part) {
                        (Some(Part::Text(text)), Part::Text(more)) => text.push_str(&more),
                        (_, part) => last.parts.push(part),
                    }
                }
            }
            None => out.push(turn),
        }
    }
    out
}

/// Reads a message, or an item of OpenAI's responses, which may be a tool call by itself.
pub(super) fn message_of(message: &Value, role: &str) -> Turn {
    let text = |key: &str| message[key].as_str().unwrap_or_default().to_owned();
    let role = message["role"].as_str().unwrap_or(role).to_owned();
    match message["type"].as_str() {
        Some("function_call" | "custom_tool_call") => {
            let input = text("arguments") + &text("input");
            let call = Part::Call { id: text("call_id"), name: text("name"), input };
            return Turn { role: "assistant".into(), parts: vec![call] };
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let result = Part::Result { id: text("call_id"), text: plain(&message["output"]) };
            return Turn { role: "tool".into(), parts: vec![result] };
        }
        Some("reasoning") => {
            let thought: Vec<&str> = items(&message["summary"]).filter_map(|s| s["text"].as_str()).collect();
            return Turn { role: "assistant".into(), parts: vec![Part::Thinking(thought.join("\n"))] };
        }
        _ => {}
    }
    if role == "tool" {
        let result = Part::Result { id: text("tool_call_id"), text: plain(&message["content"]) };
        return Turn { role, parts: vec![result] };
    }
    let mut parts: Vec<Part> = Vec::new();
    if let Some(thought) = message["reasoning_content"].as_str().filter(|t| !t.is_empty()) {
        parts.push(Part::Thinking(thought.to_owned()));
    }
    parts.extend(self::parts(&message["content"]));
    parts.extend(self::parts(&message["parts"]));
    for call in items(&message["tool_calls"]) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let function = &call["function"];
        parts.push(Part::Call {
            id: text(&call["id"]),
            name: text(&function["name"]),
            input: text(&function["arguments"]),
        });
    }
    Turn { role, parts }
}

/// Reads content: a text, or an array of texts and blocks.
fn parts(content: &Value) -> Vec<Part> {
    match content {
        Value::String(text) if !text.is_empty() => vec![Part::Text(text.clone())],
        Value::Array(blocks) => blocks.iter().map(part).collect(),
        _ => Vec::new(),
    }
}

fn part(block: &Value) -> Part {
    let text = |key: &str| block[key].as_str().unwrap_or_default().to_owned();
    if let Some(call) = block.get("functionCall") {
        let name = call["name"].as_str().unwrap_or_default().to_owned();
        return Part::Call { id: String::new(), name, input: call["args"].to_string() };
    }
    if let Some(result) = block.get("functionResponse") {
        let id = result["name"].as_str().unwrap_or_default().to_owned();
        return Part::Result { id, text: plain(&result["response"]) };
    }
    match block["type"].as_str() {
        Some("tool_use" | "server_tool_use") => {
            Part::Call { id: text("id"), name: text("name"), input: block["input"].to_string() }
        }
        Some("tool_result") => Part::Result { id: text("tool_use_id"), text: plain(&block["content"]) },
        Some("thinking") => Part::Thinking(text("thinking")),
        _ if block.is_string() => Part::Text(block.as_str().unwrap_or_default().to_owned()),
        _ if block["text"].is_string() => Part::Text(text("text")),
        kind => Part::Other { what: what(block, kind), bytes: size(block) },
    }
}

/// Text of a tool's result.
fn plain(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let lines = blocks.iter().map(|block| match part(block) {
                Part::Text(text) => text,
                Part::Other { what, bytes } => format!("[{what}, {bytes} bytes]"),
                _ => block.to_string(),
            });
            lines.collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    }
}

/// Names a part without text: its type, and the media type of what it holds.
fn what(block: &Value, kind: Option<&str>) -> String {
    let places =
        [&block["source"]["media_type"], &block["inlineData"]["mimeType"], &block["fileData"]["mimeType"]];
    let media = places.into_iter().find_map(Value::as_str).or_else(|| {
        let url = block["image_url"]["url"].as_str().or(block["image_url"].as_str())?;
        url.strip_prefix("data:").map_or(Some("at a URL"), |data| data.split(';').next())
    });
    let kind = kind.unwrap_or(if block.get("inlineData").is_some() { "data" } else { "part" });
    media.map_or_else(|| kind.to_owned(), |media| format!("{kind} {media}"))
}

/// Returns the number of bytes of the data that a part holds in base64, or else of the part's JSON.
fn size(block: &Value) -> usize {
    let url = block["image_url"]["url"].as_str().or(block["image_url"].as_str());
    let places = [&block["source"]["data"], &block["inlineData"]["data"], &block["input_audio"]["data"]];
    let file = block["file"]["file_data"].as_str().or(block["file_data"].as_str());
    let data = places.into_iter().find_map(Value::as_str).or(url).or(file);
    match data.map(|data| data.rsplit_once("base64,").map_or(data, |(_, data)| data)) {
        Some(data) => data.trim_end_matches('=').len() * 3 / 4,
        None => block.to_string().len(),
    }
}

fn said(role: &str, text: &str) -> Turn {
    Turn { role: role.into(), parts: vec![Part::Text(text.to_owned())] }
}

fn items(value: &Value) -> std::slice::Iter<'_, Value> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

#[cfg(test)]
#[path = "conversation/tests.rs"]
mod tests;
