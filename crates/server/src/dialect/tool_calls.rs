//! Tool calls: those that a model's answer asks for, and those whose results a request carries.
//!
//! All dialects are recognised by their shapes, because a journal is read long after the request was routed.

use outlast_core::words::digest::Digest;
use serde_json::Value;

use super::{
    lenient::parse_json,
    sse::{Event, Framer},
};

/// Tool call in a model's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// Input as JSON text, or as plain text for a tool that takes text.
    pub input: String,
}

/// Returns the tool calls in an answer's body, streamed or whole, in the answer's order. Unreadable parts are
/// skipped: a missed call is not reported, and nothing else depends on it.
pub fn called(body: &[u8]) -> Vec<ToolCall> {
    read(body).0.into_iter().map(|made| made.call).filter(|call| !call.id.is_empty()).collect()
}

/// Returns the tool calls that are complete in `body`, the first part of a streamed answer. Agents begin a tool as soon
/// as its call is complete, before the answer is.
pub fn called_so_far(body: &[u8]) -> Vec<ToolCall> {
    read(body)
        .0
        .into_iter()
        .filter(|made| made.complete && !made.call.id.is_empty())
        .map(|made| made.call)
        .collect()
}

fn read(body: &[u8]) -> Calls {
    let mut calls = Calls::default();
    let start = body.trim_ascii_start();
    if start.starts_with(b"{") {
        calls.of_whole(&parse_json(body).unwrap_or_default());
    } else if start.starts_with(b"[") {
        // Gemini streams one array, unless events are asked for.
        let chunks: Value = parse_json(body).unwrap_or_default();
        items(&chunks).for_each(|chunk| calls.of_candidates(chunk));
    } else {
        let mut framer = Framer::default();
        let mut events = framer.push(bytes::Bytes::copy_from_slice(body));
        events.push(framer.finish().0);
        for event in &events {
            let data = Event::read(event).data.unwrap_or_default();
            calls.of_event(&parse_json(&data).unwrap_or_default());
        }
    }
    calls
}

/// Returns the ids of the tool calls whose results are in a request's body.
pub fn answered(body: &[u8]) -> Vec<String> {
    let body: Value = parse_json(body).unwrap_or_default();
    let messages = items(&body["messages"]);
    let blocks = messages.clone().flat_map(|m| items(&m["content"])).filter(|b| b["type"] == "tool_result");
    let anthropic = blocks.filter_map(|b| b["tool_use_id"].as_str());
    let chat = messages.filter(|m| m["role"] == "tool").filter_map(|m| m["tool_call_id"].as_str());
    let outputs =
        items(&body["input"]).filter(|i| i["type"].as_str().is_some_and(|t| t.ends_with("_call_output")));
    let responses = outputs.filter_map(|i| i["call_id"].as_str());
    let mut out: Vec<String> = anthropic.chain(chat).chain(responses).map(str::to_owned).collect();
    let mut asked: Vec<&Value> = Vec::new();
    for content in items(&body["contents"]) {
        let parts = |kind| items(&content["parts"]).map(move |part| &part[kind]).filter(|p| p.is_object());
        for (n, response) in parts("functionResponse").enumerate() {
            // Results follow the content that asks for them, in its order, where they name no call.
            let named = asked.iter().find(|call| call["id"].is_string() && call["id"] == response["id"]);
            let ids = named.or(asked.get(n)).map(|call| [gemini_call(call).id, made_up(call)]);
            out.extend(ids.into_iter().flatten());
            out.extend(response["id"].as_str().map(str::to_owned));
        }
        asked = parts("functionCall").collect();
    }
    out
}

/// Returns the text of a tool call's result in a request's body, for the APIs whose calls have ids of their own.
pub fn result(body: &[u8], id: &str) -> Option<String> {
    let body: Value = parse_json(body).unwrap_or_default();
    let messages = items(&body["messages"]);
    let blocks = messages.clone().flat_map(|m| items(&m["content"]));
    let anthropic = blocks.filter(|b| b["tool_use_id"] == id).map(|b| &b["content"]);
    let chat = messages.filter(|m| m["tool_call_id"] == id).map(|m| &m["content"]);
    let is_output = |i: &&Value| i["call_id"] == id && i["output"] != Value::Null;
    let responses = items(&body["input"]).filter(is_output).map(|i| &i["output"]);
    let content = anthropic.chain(chat).chain(responses).next()?;
    let parts = items(content).filter_map(|part| part["text"].as_str()).collect::<Vec<_>>();
    Some(content.as_str().map_or_else(|| parts.join("\n"), str::to_owned))
}

/// Beginning of an id that is made up here, for a call of a Gemini model that names none.
pub const MADE_UP: char = '~';

/// Reads a function call of a Gemini model.
fn gemini_call(call: &Value) -> ToolCall {
    let given = call["id"].as_str().filter(|id| !id.is_empty()).map(str::to_owned);
    ToolCall { id: given.unwrap_or_else(|| made_up(call)), name: text(&call["name"]), input: arguments(call) }
}

/// Makes up an id, which is equal for calls of the same function with the same arguments. A client may give a call that
/// came without an id one of its own.
fn made_up(call: &Value) -> String {
    format!("{MADE_UP}{}", Digest::of(format!("{}\0{}", text(&call["name"]), arguments(call)).as_bytes()))
}

fn arguments(call: &Value) -> String {
    if call["args"].is_null() { "{}".to_owned() } else { call["args"].to_string() }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> + Clone {
    list.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

/// Tool call as it is read from an answer.
struct Made {
    /// Place in the answer: choice and index.
    place: (u64, u64),
    call: ToolCall,
    complete: bool,
}

/// Tool calls collected so far.
#[derive(Default)]
struct Calls(Vec<Made>);

impl Calls {
    fn at(&mut self, choice: u64, index: u64) -> &mut ToolCall {
        let place = (choice, index);
        let known = self.0.iter().position(|made| made.place == place);
        let i = known.unwrap_or_else(|| {
            self.0.push(Made { place, call: ToolCall::default(), complete: false });
            self.0.len() - 1
        });
        &mut self.0[i].call
    }

    /// Marks the calls that `which` picks as complete.
    fn complete(&mut self, which: impl Fn(&Made) -> bool) {
        self.0.iter_mut().filter(|made| which(made)).for_each(|made| made.complete = true);
    }

    fn of_whole(&mut self, body: &Value) {
        for (i, block) in items(&body["content"]).enumerate() {
            self.of_block(i as u64, block);
        }
        for (c, choice) in items(&body["choices"]).enumerate() {
            for (i, call) in items(&choice["message"]["tool_calls"]).enumerate() {
                self.of_chat(c as u64, i as u64, call);
            }
        }
        items(&body["output"]).for_each(|item| self.of_item(item));
        self.of_candidates(body);
    }

    fn of_event(&mut self, event: &Value) {
        match event["type"].as_str() {
            Some("content_block_start") => {
                self.of_block(event["index"].as_u64().unwrap_or(0), &event["content_block"])
            }
            Some("content_block_delta") => {
                if let Some(part) = event["delta"]["partial_json"].as_str() {
                    let call = self.at(0, event["index"].as_u64().unwrap_or(0));
                    // The start of a call carries an empty object, which the parts then replace.
                    if call.input == "{}" {
                        call.input.clear();
                    }
                    call.input.push_str(part);
                }
            }
            Some("content_block_stop") => {
                let place = (0, event["index"].as_u64().unwrap_or(0));
                self.complete(|made| made.place == place);
            }
            Some("response.output_item.done") => self.of_item(&event["item"]),
            Some("response.completed") => {
                items(&event["response"]["output"]).for_each(|item| self.of_item(item));
            }
            Some(_) => {}
            None => {
                self.of_candidates(event);
                for choice in items(&event["choices"]) {
                    let c = choice["index"].as_u64().unwrap_or(0);
                    for (i, call) in items(&choice["delta"]["tool_calls"]).enumerate() {
                        self.of_chat(c, call["index"].as_u64().unwrap_or(i as u64), call);
                    }
                    if !choice["finish_reason"].is_null() {
                        self.complete(|made| made.place.0 == c);
                    }
                }
            }
        }
    }

    /// Adds a tool call from a content block of Anthropic's.
    fn of_block(&mut self, index: u64, block: &Value) {
        if block["type"] == "tool_use" {
            let input = block["input"].to_string();
            *self.at(0, index) = ToolCall { id: text(&block["id"]), name: text(&block["name"]), input };
        }
    }

    /// Adds a whole or partial tool call from a chat completion.
    fn of_chat(&mut self, choice: u64, index: u64, part: &Value) {
        let call = self.at(choice, index);
        call.id.push_str(part["id"].as_str().unwrap_or_default());
        call.name.push_str(part["function"]["name"].as_str().unwrap_or_default());
        call.input.push_str(part["function"]["arguments"].as_str().unwrap_or_default());
    }

    /// Adds the function calls of a Gemini model's answer, or of a part of it. Each call comes whole.
    fn of_candidates(&mut self, body: &Value) {
        for candidate in items(&body["candidates"]) {
            let parts = items(&candidate["content"]["parts"]);
            for call in parts.map(|part| &part["functionCall"]).filter(|call| call.is_object()) {
                let place = (u64::MAX, self.0.len() as u64);
                self.0.push(Made { place, call: gemini_call(call), complete: true });
            }
        }
    }

    /// Adds a tool call from an output item of a response. Streams report it when it is done, and mostly again
    /// at the end.
    fn of_item(&mut self, item: &Value) {
        let input = match item["type"].as_str() {
            Some("function_call") => text(&item["arguments"]),
            Some("custom_tool_call") => text(&item["input"]),
            Some("local_shell_call" | "shell_call") => item["action"].to_string(),
            _ => return,
        };
        let id = text(&item["call_id"]);
        if self.0.iter().any(|made| made.call.id == id) {
            return;
        }
        let name = item["name"].as_str().unwrap_or("shell").to_owned();
        let index = self.0.len() as u64;
        *self.at(0, index) = ToolCall { id, name, input };
        self.complete(|made| made.place == (0, index));
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, wanted: &[(&str, &str, &str)]) {
        let had = called(body.as_bytes());
        let had: Vec<_> = had.iter().map(|c| (c.id.as_str(), c.name.as_str(), c.input.as_str())).collect();
        assert_eq!(had, wanted, "{body}");
    }

    #[test]
    fn whole_answers_tell_their_tool_calls() {
        check(
            r#"{"content":[{"type":"text","text":"x"},{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}}]}"#,
            &[("t1", "Bash", r#"{"command":"ls"}"#)],
        );
        check(
            r#"{"choices":[{"message":{"tool_calls":[{"id":"c1","function":{"name":"sh","arguments":"{}"}}]}}]}"#,
            &[("c1", "sh", "{}")],
        );
        check(
            r#"{"output":[{"type":"reasoning"},{"type":"function_call","id":"fc","call_id":"c1","name":"sh","arguments":"{}"},
                {"type":"local_shell_call","call_id":"c2","action":{"command":["ls"]}},
                {"type":"custom_tool_call","call_id":"c3","name":"patch","input":"+a"}]}"#,
            &[("c1", "sh", "{}"), ("c2", "shell", r#"{"command":["ls"]}"#), ("c3", "patch", "+a")],
        );
        check(r#"{"content":"plain"}"#, &[]);
        check("{cut off", &[]);
        check("<html>", &[]);
    }

    #[test]
    fn streams_tell_their_tool_calls() {
        check(
            "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"Bash\",\"input\":{}}}\n\n\
             data: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"a\\\":\"}}\n\n\
             data: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"1}\"}}\n\n",
            &[("t1", "Bash", r#"{"a":1}"#)],
        );
        check(
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c1\",\"function\":{\"name\":\"sh\",\"arguments\":\"{\"}}]}}]}\n\n\
             data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"}\"}}]}}]}\n\ndata: [DONE]\n\n",
            &[("c1", "sh", "{}")],
        );
        let item = r#"{"type":"function_call","call_id":"c1","name":"sh","arguments":"{}"}"#;
        check(
            &format!(
                "data: {{\"type\":\"response.output_item.done\",\"item\":{item}}}\n\n\
                 data: {{\"type\":\"response.completed\",\"response\":{{\"output\":[{item}]}}}}\n\n"
            ),
            &[("c1", "sh", "{}")],
        );
    }

    #[test]
    fn gemini_models_calls_are_known_with_an_id_and_without() {
        let call = r#"{"functionCall":{"name":"sh","args":{"a":1}ID}}"#;
        let chunk =
            |call: &str| format!(r#"{{"candidates":[{{"content":{{"role":"model","parts":[{call}]}}}}]}}"#);
        let named = chunk(&call.replace("ID", r#","id":"g1""#));
        let bare = chunk(&call.replace("ID", ""));
        for body in [named.clone(), format!("data: {named}\r\n\r\n"), format!("[{named}\n,\r\n{named}]")] {
            assert_eq!(called(body.as_bytes())[0].id, "g1", "{body}");
            assert_eq!(called(body.as_bytes())[0].input, r#"{"a":1}"#, "{body}");
        }
        assert_eq!(called_so_far(format!("data: {bare}\r\n\r\n").as_bytes()).len(), 1);
        let id = called(bare.as_bytes()).remove(0).id;
        assert!(id.starts_with(MADE_UP), "{id}");
        let request = |asked: &str, responses: &str| {
            format!(
                r#"{{"contents":[{{"role":"user","parts":[{{"text":"x"}}]}},{{"role":"model","parts":[{{"text":"y"}},{asked}]}},
                    {{"role":"user","parts":[{responses}]}}]}}"#
            )
        };
        let response = r#"{"functionResponse":{"name":"sh","response":{}}}"#;
        let with_id = response.replace("\"name\"", "\"id\":\"sh-1\",\"name\"");
        let client = call.replace("ID", r#","id":"sh-1""#);
        for (asked, responses, wanted) in [
            (call.replace("ID", ""), response, true),
            (call.replace("ID", ""), &with_id, true),
            (client, &with_id, true),
            (call.replace("ID", ""), r#"{"text":"no"}"#, false),
        ] {
            let answered = answered(request(&asked, responses).as_bytes());
            assert_eq!(answered.contains(&id), wanted, "{asked}, {responses}: {answered:?}");
        }
    }

    #[test]
    fn part_of_a_stream_tells_the_calls_that_are_complete() {
        let block = |kind: &str, rest: &str| {
            format!("data: {{\"type\":\"content_block_{kind}\",\"index\":1{rest}}}\n\n")
        };
        let start =
            block("start", r#","content_block":{"type":"tool_use","id":"t1","name":"Bash","input":{}}"#);
        let delta = block("delta", r#","delta":{"type":"input_json_delta","partial_json":"{\"a\":1}"}"#);
        let chat = r#"data: {"choices":[{"index":0,"delta":{"tool_calls":[{"id":"c1","function":{"name":"sh","arguments":"{}"}}]},"finish_reason":FINISH}]}"#;
        let item = r#"data: {"type":"response.output_item.done","item":{"type":"function_call","call_id":"c1","name":"sh","arguments":"{}"}}"#;
        for (body, wanted) in [
            (format!("{start}{delta}"), vec![]),
            (format!("{start}{delta}{}", block("stop", "")), vec!["t1"]),
            (chat.replace("FINISH", "null") + "\n\n", vec![]),
            (chat.replace("FINISH", "\"tool_calls\"") + "\n\n", vec!["c1"]),
            (format!("{item}\n\n"), vec!["c1"]),
        ] {
            let had: Vec<String> = called_so_far(body.as_bytes()).into_iter().map(|call| call.id).collect();
            assert_eq!(had, wanted, "{body}");
        }
    }

    #[test]
    fn requests_tell_which_calls_have_their_results() {
        for (body, wanted) in [
            (
                r#"{"messages":[{"role":"user","content":"x"},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1"}]}]}"#,
                "t1",
            ),
            (r#"{"messages":[{"role":"tool","tool_call_id":"c1","content":"x"}]}"#, "c1"),
            (
                r#"{"input":[{"type":"function_call","call_id":"no"},{"type":"function_call_output","call_id":"c2"}]}"#,
                "c2",
            ),
        ] {
            assert_eq!(answered(body.as_bytes()), [wanted]);
        }
        assert_eq!(answered(b"not json"), Vec::<String>::new());
    }

    #[test]
    fn requests_tell_the_text_of_a_result() {
        for (body, wanted) in [
            (r#"{"messages":[{"content":[{"tool_use_id":"c","content":"a"}]}]}"#, Some("a")),
            (
                r#"{"messages":[{"content":[{"tool_use_id":"c","content":[{"text":"a"},{"type":"image"},{"text":"b"}]}]}]}"#,
                Some("a\nb"),
            ),
            (r#"{"messages":[{"role":"tool","tool_call_id":"c","content":"a"}]}"#, Some("a")),
            (r#"{"input":[{"call_id":"c","name":"sh"},{"call_id":"c","output":"a"}]}"#, Some("a")),
            (r#"{"messages":[{"content":[{"tool_use_id":"d","content":"a"}]}]}"#, None),
        ] {
            assert_eq!(result(body.as_bytes(), "c").as_deref(), wanted, "{body}");
        }
    }
}
