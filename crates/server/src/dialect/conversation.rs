//! Requests and answers as a conversation: a list of typed turns, which every view of a conversation walks.
//!
//! Views are the page, the journal, the transcript, busy waiting, and what a resumed agent's model is told of its tool
//! calls. All dialects are recognised by their shapes, because a journal is read long after the request was routed. What
//! has no known shape is a part with its size: nothing is left out without a word.

mod answer;

use outlast_core::words::Digest;
use serde_json::Value;

pub use self::answer::{answer, called, called_so_far};
use super::lenient::parse_json;

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
    /// Tool call that the model makes, for the client to carry out.
    Call(ToolCall),
    /// Tool call that the provider carries out itself, such as a web search.
    Served(ToolCall),
    Result(ToolResult),
    /// Part that is no text: an image, a file, sound or an unknown type (`what`), and its size in bytes.
    Other {
        what: String,
        bytes: usize,
    },
}

/// Tool call of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Id that the API gives the call; made up for a call of a Gemini model that names none; else empty.
    pub id: String,
    pub name: String,
    /// Input as JSON text, or as plain text for a tool that takes text.
    pub input: String,
}

/// Result of a tool call, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolResult {
    /// Ids of the call: several where a client gave an id of its own to a call that came without one, none where the API
    /// has none.
    pub ids: Vec<String>,
    pub text: String,
}

/// Beginning of an id that is made up here.
pub const MADE_UP: char = '~';

impl Turn {
    /// Returns whether the model speaks.
    pub fn is_models(&self) -> bool {
        matches!(self.role.as_str(), "assistant" | "model")
    }

    /// Returns the tool calls that the client carries out.
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.parts.iter().filter_map(|part| if let Part::Call(call) = part { Some(call) } else { None })
    }

    pub fn results(&self) -> impl Iterator<Item = &ToolResult> {
        self.parts.iter().filter_map(|part| if let Part::Result(result) = part { Some(result) } else { None })
    }

    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.parts
            .iter()
            .filter_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None })
    }
}

impl ToolCall {
    /// Makes up an id, which is equal for calls of the same function with the same arguments. A client may give a call that
    /// came without an id one of its own.
    fn made_up_id(&self) -> String {
        format!("{MADE_UP}{}", Digest::of(format!("{}\0{}", self.name, self.input).as_bytes()))
    }

    /// Returns the id for people: as the API has it, or the beginning of a made-up one.
    pub fn shown_id(&self) -> &str {
        shown(&self.id)
    }
}

impl ToolResult {
    /// Returns the call's id for people, as [`ToolCall::shown_id`] does.
    pub fn shown_id(&self) -> &str {
        self.ids.first().map_or("", |id| shown(id))
    }
}

fn shown(id: &str) -> &str {
    if id.starts_with(MADE_UP) { id.get(..9).unwrap_or(id) } else { id }
}

/// Returns the command in a shell tool's JSON input, in the fields that known agents use; `None` for any other input.
pub fn command(input: &str) -> Option<String> {
    let input: Value = serde_json::from_str(input).ok()?;
    let words = |v: &Value| {
        let words: Option<Vec<&str>> = v.as_array()?.iter().map(Value::as_str).collect();
        Some(words?.join(" "))
    };
    ["command", "cmd", "script"]
        .iter()
        .map(|key| &input[*key])
        .find_map(|v| v.as_str().map(str::to_owned).or_else(|| words(v)))
}

/// Fields of a tool's input that say what it is about: a file, a place, a question.
const SUBJECTS: [&str; 8] =
    ["file_path", "notebook_path", "path", "file", "url", "pattern", "query", "description"];

/// Returns what a tool call is about: a shell's command, the files of a patch, a file, a question; the whole input if none
/// of these is known. The input may be cut off.
pub fn subject(input: &str) -> String {
    let of_patch = |line: &str| {
        ["*** Update File: ", "*** Add File: ", "*** Delete File: "]
            .iter()
            .find_map(|head| line.trim().strip_prefix(head).map(str::to_owned))
    };
    let whole = command(input).unwrap_or_else(|| input.to_owned());
    let files: Vec<String> = whole.lines().filter_map(of_patch).collect();
    if !files.is_empty() {
        return files.join(" ");
    }
    if whole != input || !input.starts_with('{') {
        return whole;
    }
    SUBJECTS
        .iter()
        .find_map(|key| field(input, key))
        .unwrap_or_else(|| if input == "{}" { String::new() } else { whole })
}

/// Returns a text field of JSON that may be cut off behind it.
fn field(json: &str, key: &str) -> Option<String> {
    if let Ok(value) = serde_json::from_str::<Value>(json) {
        return value[key].as_str().map(str::to_owned);
    }
    let text = json.split_once(&format!("\"{key}\":"))?.1.trim_start().strip_prefix('"')?;
    Some(text.split('"').next()?.to_owned())
}

/// Returns the turns of a request's body, in the body's order.
pub fn request(body: &Value) -> Vec<Turn> {
    turns(body).collect()
}

/// Reads the turns of a request's body one after the other.
pub(super) fn turns(body: &Value) -> impl Iterator<Item = Turn> {
    let keys = ["system", "instructions", "systemInstruction", "system_instruction"];
    let system = keys.into_iter().filter_map(|key| {
        let parts = parts(body[key].get("parts").unwrap_or(&body[key]));
        (!parts.is_empty()).then(|| Turn { role: "system".into(), parts })
    });
    // Gemini's API also takes one content that stands in no list.
    let contents = Some(&body["contents"]).filter(|content| content.is_object());
    let messages = items(&body["messages"]).chain(items(&body["contents"])).chain(contents);
    let input = &body["input"];
    let (input, plain) = match input.get(0) {
        Some(Value::Object(_)) => (input, Vec::new()),
        Some(Value::String(_)) | None => (&Value::Null, parts(input)),
        Some(_) => (&Value::Null, vec![other(input, Some("tokens"))]),
    };
    let plain = (!plain.is_empty()).then(|| Turn { role: "user".into(), parts: plain });
    let mut reader = Reader::default();
    system.chain(messages.chain(items(input)).map(move |item| reader.turn(item, "user"))).chain(plain)
}

/// Returns the names of the tools that a request offers.
pub fn tools(body: &Value) -> Vec<String> {
    let of_gemini = items(&body["tools"]).flat_map(|tool| {
        items(either(tool, "functionDeclarations", "function_declarations").unwrap_or(&Value::Null))
    });
    let name = |tool: &Value| {
        let names = [&tool["name"], &tool["function"]["name"], &tool["type"]];
        names.into_iter().find_map(Value::as_str).map(str::to_owned)
    };
    items(&body["tools"]).chain(of_gemini).filter_map(name).collect()
}

/// Returns the results of tool calls in a request's body.
pub fn results(body: &[u8]) -> Vec<ToolResult> {
    let body: Value = parse_json(body).unwrap_or_default();
    turns(&body)
        .flat_map(|turn| turn.parts)
        .filter_map(|part| if let Part::Result(it) = part { Some(it) } else { None })
        .collect()
}

/// Reader of the messages of one request, or of one agent's own history, in their order.
#[derive(Default)]
pub struct Reader {
    /// Calls in the content before, where they are Gemini's: results follow them in their order, and need name none.
    asked: Vec<ToolCall>,
}

impl Reader {
    /// Reads a message or content, or an item of OpenAI's responses. `role`: role of a message that names none.
    pub fn turn(&mut self, item: &Value, role: &str) -> Turn {
        if let Some(turn) = item["type"].as_str().and_then(|kind| item_of_response(kind, item)) {
            return turn;
        }
        let role = item["role"].as_str().unwrap_or(role).to_owned();
        if matches!(role.as_str(), "tool" | "function") {
            let result = result_of(item["tool_call_id"].as_str(), plain(&item["content"]));
            return Turn { role, parts: vec![result] };
        }
        let thoughts = ["reasoning_content", "reasoning"].into_iter().find_map(|key| filled(&item[key]));
        let mut parts: Vec<Part> =
            thoughts.map(|thought| Part::Thinking(thought.to_owned())).into_iter().collect();
        parts.extend(self::parts(if item.is_string() { item } else { &item["content"] }));
        parts.extend(self::parts(&item["parts"]));
        parts.extend(filled(&item["refusal"]).map(|text| Part::Text(text.to_owned())));
        parts.extend(item["audio"].is_object().then(|| match filled(&item["audio"]["transcript"]) {
            Some(text) => Part::Text(text.to_owned()),
            None => other(&item["audio"], Some("audio")),
        }));
        parts.extend(chat_calls(item).map(|(_, call)| Part::Call(call)));
        if parts.is_empty() && !["content", "parts", "role"].iter().any(|key| item.get(key).is_some()) {
            parts.push(other(item, item["type"].as_str()));
        }
        let mut turn = Turn { role, parts };
        if item.get("parts").is_some() {
            self.pair(&mut turn);
        }
        turn
    }

    /// Gives the results of Gemini's calls the ids of their calls.
    fn pair(&mut self, turn: &mut Turn) {
        let results = turn
            .parts
            .iter_mut()
            .filter_map(|part| if let Part::Result(it) = part { Some(it) } else { None });
        for (n, result) in results.enumerate() {
            let named = self.asked.iter().find(|call| result.ids.contains(&call.id));
            for id in
                named.or(self.asked.get(n)).into_iter().flat_map(|call| [call.id.clone(), call.made_up_id()])
            {
                if !result.ids.contains(&id) {
                    result.ids.push(id);
                }
            }
        }
        self.asked = turn.calls().cloned().collect();
    }
}

/// Reads an item of OpenAI's responses that is no message; `None` for a message and for an unknown kind.
fn item_of_response(kind: &str, item: &Value) -> Option<Turn> {
    let named = |id: &str, name: &str, input: &str| {
        let name = item["name"].as_str().unwrap_or(name).to_owned();
        ToolCall { id: text_or_json(&item[id]), name, input: text_or_json(&item[input]) }
    };
    let call = |name: &str, input: &str| vec![Part::Call(named("call_id", name, input))];
    let served = |name: &str, input: &str| Part::Served(named("id", name, input));
    let result = |id: &Value, output: &Value| result_of(id.as_str(), plain(output));
    let (role, parts) = match kind {
        "function_call" => ("assistant", call("", "arguments")),
        "custom_tool_call" => ("assistant", call("", "input")),
        "local_shell_call" | "shell_call" => ("assistant", call("shell", "action")),
        "apply_patch_call" => ("assistant", call("apply_patch", "operation")),
        "computer_call" if item["actions"].is_array() => ("assistant", call("computer", "actions")),
        "computer_call" => ("assistant", call("computer", "action")),
        "web_search_call" => ("assistant", vec![served("web_search", "action")]),
        "file_search_call" => ("assistant", vec![served("file_search", "queries")]),
        "code_interpreter_call" => ("assistant", vec![served("code_interpreter", "code")]),
        "mcp_call" => {
            let output = if item["error"].is_null() { &item["output"] } else { &item["error"] };
            let result = (!output.is_null()).then(|| result(&item["id"], output));
            ("assistant", [served("", "arguments")].into_iter().chain(result).collect())
        }
        "reasoning" => {
            let thoughts =
                items(&item["summary"]).chain(items(&item["content"])).filter_map(|it| it["text"].as_str());
            ("assistant", vec![Part::Thinking(thoughts.collect::<Vec<_>>().join("\n"))])
        }
        // A result of a tool that is not known here is the client's all the same.
        kind if kind.ends_with("_call_output") => ("tool", vec![result(&item["call_id"], &item["output"])]),
        _ => return None,
    };
    Some(Turn { role: role.into(), parts })
}

/// Reads the tool calls of a chat completion's message, each with its place among them. Part of a call comes with the
/// delta of a stream.
fn chat_calls(message: &Value) -> impl Iterator<Item = (u64, ToolCall)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let calls = items(&message["tool_calls"]).enumerate().map(move |(n, call)| {
        let (tool, input) = match call.get("custom") {
            Some(custom) => (custom, &custom["input"]),
            None => (&call["function"], &call["function"]["arguments"]),
        };
        let (id, name, input) = (text(&call["id"]), text(&tool["name"]), text(input));
        (call["index"].as_u64().unwrap_or(n as u64), ToolCall { id, name, input })
    });
    // What calls were before they had ids.
    let old = message.get("function_call").filter(|call| call.is_object());
    calls.chain(old.map(move |call| {
        let (name, input) = (text(&call["name"]), text(&call["arguments"]));
        (0, ToolCall { id: String::new(), name, input })
    }))
}

/// Reads content: a text, or an array of texts and blocks.
fn parts(content: &Value) -> Vec<Part> {
    match content {
        Value::Null => Vec::new(),
        Value::String(text) if text.is_empty() => Vec::new(),
        Value::Array(blocks) => blocks.iter().map(part).collect(),
        block => vec![part(block)],
    }
}

/// Reads a block of Anthropic's or OpenAI's content, or a part of Gemini's.
fn part(block: &Value) -> Part {
    let text = |key: &str| block[key].as_str().unwrap_or_default().to_owned();
    if let Some(call) = either(block, "functionCall", "function_call") {
        let input = if call["args"].is_null() { "{}".to_owned() } else { call["args"].to_string() };
        let mut read = ToolCall { id: String::new(), name: text_or_json(&call["name"]), input };
        read.id = filled(&call["id"]).map_or_else(|| read.made_up_id(), str::to_owned);
        return Part::Call(read);
    }
    if let Some(result) = either(block, "functionResponse", "function_response") {
        return result_of(filled(&result["id"]), plain(&result["response"]));
    }
    if let Some(code) = either(block, "executableCode", "executable_code") {
        let (name, input) = ("code_execution".to_owned(), text_or_json(&code["code"]));
        return Part::Served(ToolCall { id: text_or_json(&code["id"]), name, input });
    }
    if let Some(result) = either(block, "codeExecutionResult", "code_execution_result") {
        let text = filled(&result["output"]).or(result["outcome"].as_str()).unwrap_or_default().to_owned();
        return result_of(filled(&result["id"]), text);
    }
    let call = || ToolCall { id: text("id"), name: text("name"), input: block["input"].to_string() };
    match block["type"].as_str() {
        Some("tool_use") => Part::Call(call()),
        Some("server_tool_use" | "mcp_tool_use") => Part::Served(call()),
        Some(kind) if kind.ends_with("tool_result") => {
            result_of(block["tool_use_id"].as_str(), plain(&block["content"]))
        }
        Some("thinking") => Part::Thinking(text("thinking")),
        Some("refusal") => Part::Text(text("refusal")),
        _ if block.is_string() => Part::Text(block.as_str().unwrap_or_default().to_owned()),
        _ if block["text"].is_string() && block["thought"] == true => Part::Thinking(text("text")),
        _ if block["text"].is_string() => Part::Text(text("text")),
        kind => other(block, kind),
    }
}

fn result_of(id: Option<&str>, text: String) -> Part {
    Part::Result(ToolResult { ids: id.map(str::to_owned).into_iter().collect(), text })
}

/// Text of a tool's result.
fn plain(content: &Value) -> String {
    match content {
        Value::Null => String::new(),
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

/// Describes a block without text: its type, the media type of what it holds, and the number of bytes of the data that it
/// holds in base64, or else of its JSON.
fn other(block: &Value, kind: Option<&str>) -> Part {
    let (inline, file) = (either(block, "inlineData", "inline_data"), either(block, "fileData", "file_data"));
    let url = block["image_url"]["url"].as_str().or(block["image_url"].as_str());
    let media = [inline, file].into_iter().flatten().flat_map(|data| either(data, "mimeType", "mime_type"));
    let media = [&block["source"]["media_type"]]
        .into_iter()
        .chain(media)
        .find_map(Value::as_str)
        .or_else(|| url?.strip_prefix("data:").map_or(Some("at a URL"), |data| data.split(';').next()));
    let kind = kind.unwrap_or(if inline.is_some() { "data" } else { "part" });
    let what = media.map_or_else(|| kind.to_owned(), |media| format!("{kind} {media}"));
    let inline = inline.map_or(&Value::Null, |inline| &inline["data"]);
    let file = [&block["file"]["file_data"], &block["file_data"]];
    let places = [&block["source"]["data"], inline, &block["input_audio"]["data"]].into_iter().chain(file);
    let data = places.into_iter().find_map(Value::as_str).or(url);
    let bytes = match data.map(|data| data.rsplit_once("base64,").map_or(data, |(_, data)| data)) {
        Some(data) => data.trim_end_matches('=').len() * 3 / 4,
        None => block.to_string().len(),
    };
    Part::Other { what, bytes }
}

/// Returns a member of Gemini's JSON, which may be spelled in either way.
fn either<'v>(value: &'v Value, camel: &str, snake: &str) -> Option<&'v Value> {
    value.get(camel).or(value.get(snake)).filter(|member| !member.is_null())
}

fn text_or_json(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn filled(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.is_empty())
}

fn items(value: &Value) -> std::slice::Iter<'_, Value> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

#[cfg(test)]
#[path = "conversation/tests.rs"]
mod tests;
