//! A request as a conversation that grows: what it begins with, how many items it has, and what its last items say.
//!
//! Items are cut apart without being read, because each call of a long conversation passes here.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use outlast_core::{
    call::busy_waiting::{ToolUse, Turn},
    words::Digest,
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::conversation::{Part, Reader, ToolCall};

/// Texts of which one is in every request body that carries a tool's result, whatever the dialect. A conversation
/// without tool results does not wait for a tool.
static RESULTS: LazyLock<[Finder<'static>; 5]> = LazyLock::new(|| {
    ["tool_result", "_call_output", "tool_call_id", "functionResponse", "function_response"].map(Finder::new)
});

/// Most items that a waiting turn adds to its conversation. A turn that adds more does not count as waiting.
const MOST: usize = 64;

/// Most items, from the start of a conversation, by which the conversation is identified.
const OPENING: usize = 8;

/// Items of a request's conversation.
pub struct Talk<'a> {
    key: Digest,
    items: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    contents: Option<&'a RawValue>,
    prompt_cache_key: Option<Value>,
}

impl<'a> Talk<'a> {
    /// Reads a request's body; `None` if it carries no tool's result.
    pub fn read(body: &'a [u8]) -> Option<Talk<'a>> {
        RESULTS.iter().find(|mark| mark.find(body).is_some())?;
        let body: Body<'a> = serde_json::from_slice(body).ok()?;
        let list = body.messages.or(body.input).or(body.contents)?;
        let items: Vec<&'a RawValue> = serde_json::from_str(list.get()).ok()?;
        let mut opening = body.prompt_cache_key.map(|key| key.to_string()).unwrap_or_default();
        // Programs begin all their conversations with the same system text.
        for item in items.iter().take(OPENING) {
            let item: Value = serde_json::from_str(item.get()).ok()?;
            let turn = Reader::default().turn(&item, "user");
            opening.extend(turn.texts());
            if turn.role == "user" {
                break;
            }
        }
        Some(Talk { key: Digest::of(opening.as_bytes()), items })
    }

    /// Returns the digest that identifies the conversation, made from its first items.
    pub fn key(&self) -> Digest {
        self.key
    }

    /// Returns the number of items of the conversation.
    pub fn size(&self) -> usize {
        self.items.len()
    }

    /// Returns the tool results and texts that were added since the conversation had `before` items. Returns an empty
    /// turn, which does not count as waiting, if nothing was added or more than `MOST` items were.
    pub fn since(&self, before: usize) -> Turn {
        let mut turn = Turn::default();
        let Some(added) = self.items.get(before..).filter(|added| added.len() <= MOST) else { return turn };
        let (mut calls, mut reader): (Vec<ToolCall>, _) = (Vec::new(), Reader::default());
        for item in added {
            let item: Value = serde_json::from_str(item.get()).unwrap_or_default();
            let said = reader.turn(&item, "user");
            let by_model = said.is_models();
            for part in said.parts {
                match part {
                    Part::Call(call) => calls.push(call),
                    Part::Result(result) => {
                        // A result of a call that was made before tells something new.
                        match calls.iter().position(|call| result.ids.contains(&call.id)) {
                            Some(at) => {
                                let ToolCall { name, input, .. } = calls.remove(at);
                                turn.uses.push(ToolUse { name, input, result: result.text });
                            }
                            None => turn.is_told = true,
                        }
                    }
                    Part::Text(text) if !by_model => {
                        // What programs add for the model begins with a tag; everything else is a person's.
                        turn.is_told |= !text.trim().is_empty() && !text.trim_start().starts_with('<');
                        turn.texts.push(text);
                    }
                    Part::Served(_) | Part::Other { .. } => turn.is_told = true,
                    Part::Text(_) | Part::Thinking(_) => {}
                }
            }
        }
        // A call without a result is still under way.
        turn.is_told |= !calls.is_empty();
        turn
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn turn(body: &Value, before: usize) -> Turn {
        let body = body.to_string();
        Talk::read(body.as_bytes()).unwrap().since(before)
    }

    fn used(name: &str, input: &str, result: &str) -> ToolUse {
        ToolUse { name: name.into(), input: input.into(), result: result.into() }
    }

    #[test]
    fn what_a_request_adds_is_read_in_each_dialect() {
        let anthropic = json!({"messages": [
            {"role": "user", "content": "wait"},
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a"}]}]},
        ]});
        let chat = json!({"messages": [
            {"role": "user", "content": "wait"},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "t1", "function": {"name": "Bash", "arguments": "{\"command\":\"ls\"}"}}]},
            {"role": "tool", "tool_call_id": "t1", "content": "a"},
        ]});
        let responses = json!({"input": [
            {"role": "user", "content": [{"type": "input_text", "text": "wait"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "t1", "name": "Bash", "arguments": "{\"command\":\"ls\"}"},
            {"type": "function_call_output", "call_id": "t1", "output": "a"},
        ]});
        let gemini = json!({"contents": [
            {"role": "user", "parts": [{"text": "wait"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "Bash", "args": {"command": "ls"}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "Bash", "response": "a"}}]},
        ]});
        let spelled =
            gemini.to_string().replace("functionC", "function_c").replace("functionR", "function_r");
        let spelled = serde_json::from_str(&spelled).unwrap();
        for body in [anthropic, chat, responses, gemini, spelled] {
            let wanted = vec![used("Bash", r#"{"command":"ls"}"#, "a")];
            assert_eq!(turn(&body, 1), Turn { uses: wanted, ..Turn::default() }, "{body}");
        }
    }

    #[test]
    fn a_persons_words_and_open_calls_are_news_and_reminders_are_kept() {
        let body = |last: Value| {
            json!({"messages": [
                {"role": "user", "content": "wait"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "status", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a"}, last]},
            ]})
        };
        let reminded =
            turn(&body(json!({"type": "text", "text": "<system-reminder>x</system-reminder>"})), 1);
        assert!(!reminded.is_told && reminded.texts.len() == 1);
        assert!(turn(&body(json!({"type": "text", "text": "stop that"})), 1).is_told);
        assert!(turn(&body(json!({"type": "image", "source": {}})), 1).is_told);
        assert!(turn(&body(json!({"type": "text", "text": " "})), 2).is_told, "its call was made before");
        let open = json!({"messages": [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t0"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "status", "input": {}}]},
        ]});
        assert!(turn(&open, 1).is_told);
        // A conversation that was made shorter.
        assert_eq!(turn(&open, 9), Turn::default());
    }

    #[test]
    fn a_conversation_is_known_by_how_it_begins() {
        let of = |system: &str, first: &str, more: &str, key: Option<&str>| {
            let body = json!({"prompt_cache_key": key, "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": [{"type": "text", "text": first, "cache_control": {"type": more}}]},
                {"role": "tool", "tool_call_id": "t", "content": more},
            ]});
            Talk::read(body.to_string().as_bytes()).map(|talk| (talk.key(), talk.size())).unwrap()
        };
        assert_eq!(of("s", "a", "x", None), of("s", "a", "y", None));
        assert_ne!(of("s", "a", "x", None), of("s", "b", "x", None));
        assert_ne!(of("s", "a", "x", Some("k")), of("s", "a", "x", Some("l")));
        assert!(Talk::read(br#"{"messages":[{"role":"user","content":"no tools"}]}"#).is_none());
    }
}
