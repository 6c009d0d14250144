//! A request as its provider's prompt cache reads it: tools, then system text, then messages, block by block.
//!
//! Two requests share a cache up to their first byte that differs in this order. Dialects are recognised by their
//! shapes, because a journal is read long after the request was routed.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::conversation;

/// Length in bytes of an excerpt around a difference; `BEFORE`: the part of it before the difference.
const EXCERPT: usize = 120;
const BEFORE: usize = 30;

/// Text of the block that Claude Code puts before its system text, as its JSON has it. A number in the block may be another
/// in each request.
const ATTRIBUTION: &str = "\"text\":\"x-anthropic-billing-header:";

/// Parts of a request in the order of the cache, each under every name that a dialect gives it.
const PARTS: [(&str, &[&str]); 3] = [
    ("tools", &["tools"]),
    ("system", &["system", "instructions", "systemInstruction", "system_instruction"]),
    ("messages", &["messages", "input", "contents"]),
];

/// Request as its provider's prompt cache reads it: blocks in the order tools, system text, messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    blocks: Vec<Block>,
    /// Key of the conversation, where the client names one for the cache.
    key: Option<String>,
    /// Texts with which the conversation begins, before the model first speaks.
    opening: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    part: &'static str,
    place: String,
    text: String,
}

/// First place in which a later prompt differs from an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Part of the request: `tools`, `system` or `messages`.
    pub part: &'static str,
    /// Name of the block, such as `tools[3] (Bash)` or `messages[2].content[0]`.
    pub place: String,
    /// Position of the first differing byte in the block's JSON text, counted from 0.
    pub byte: usize,
    /// Number of bytes at the start that both prompts have in common.
    pub same_bytes: usize,
    /// Number of bytes of the whole earlier prompt.
    pub bytes: usize,
    /// Excerpt of the earlier prompt around the byte.
    pub before: Option<String>,
    /// Excerpt of the later prompt around the byte; `None` if that prompt has no such block.
    pub after: Option<String>,
}

impl Prompt {
    /// Reads a request's body. Members outside tools, system text and messages are left out: no cache prefix has them.
    pub fn read(body: &Value) -> Prompt {
        let mut prompt =
            Prompt { key: body["prompt_cache_key"].as_str().map(str::to_owned), ..Prompt::default() };
        for (part, names) in PARTS {
            for value in names.iter().filter_map(|name| body.get(*name)) {
                match value {
                    Value::Array(items) if part == "messages" => {
                        items.iter().enumerate().for_each(|(at, item)| prompt.push_message(at, item));
                    }
                    Value::Array(items) => items.iter().enumerate().for_each(|(at, item)| {
                        let name = item["name"].as_str().or(item["function"]["name"].as_str());
                        let name = name.map_or_else(String::new, |name| format!(" ({name})"));
                        prompt.push(part, format!("{part}[{at}]{name}"), "", item);
                    }),
                    Value::Null => {}
                    other => prompt.push(part, part.to_owned(), "", other),
                }
            }
        }
        prompt.opening = opening(body);
        prompt
    }

    fn push_message(&mut self, at: usize, message: &Value) {
        let mut frame = message.clone();
        let content = frame.as_object_mut().and_then(|frame| frame.shift_remove("content"));
        let frame = frame.to_string();
        match content {
            Some(Value::Array(blocks)) => blocks.iter().enumerate().for_each(|(block, value)| {
                self.push("messages", format!("messages[{at}].content[{block}]"), &frame, value);
            }),
            // A text and the list of one text block are the same prompt.
            Some(Value::String(text)) => {
                let block = serde_json::json!({"type": "text", "text": text});
                self.push("messages", format!("messages[{at}].content[0]"), &frame, &block);
            }
            _ => self.push("messages", format!("messages[{at}]"), "", message),
        }
    }

    fn push(&mut self, part: &'static str, place: String, frame: &str, block: &Value) {
        let mut block = block.clone();
        unmark(&mut block);
        self.blocks.push(Block { part, place, text: format!("{frame}{block}") });
    }

    /// Removes Claude Code's attribution block, as api.anthropic.com does before it looks into its cache. Other providers
    /// leave the block in.
    pub fn without_attribution(mut self) -> Prompt {
        self.blocks.retain(|block| block.place != "system[0]" || !block.text.contains(ATTRIBUTION));
        self
    }

    /// Returns the number of bytes of all blocks.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.text.len()).sum()
    }

    /// Returns whether both prompts belong to one conversation: they have the same cache key of the client, or, unless
    /// both name one, a user's text before the model's first message in common.
    pub fn continues(&self, before: &Prompt) -> bool {
        match (&self.key, &before.key) {
            (Some(own), Some(other)) => own == other,
            _ => self.opening.iter().any(|text| before.opening.contains(text)),
        }
    }

    /// Returns the first place in which this prompt differs from the earlier `before`; `None` if it begins with all of
    /// it.
    pub fn leaves(&self, before: &Prompt) -> Option<Difference> {
        let mut same_bytes = 0;
        let mut own = self.blocks.iter();
        for old in &before.blocks {
            let new = own.next();
            let (old_text, new_text) = (old.text.as_str(), new.map_or("", |block| block.text.as_str()));
            if old_text == new_text {
                same_bytes += old_text.len();
                continue;
            }
            let byte = old_text.bytes().zip(new_text.bytes()).take_while(|(a, b)| a == b).count();
            return Some(Difference {
                part: old.part,
                place: old.place.clone(),
                byte,
                same_bytes: same_bytes + byte,
                bytes: before.bytes(),
                before: Some(excerpt(old_text, byte)),
                after: new.map(|block| excerpt(&block.text, byte)),
            });
        }
        None
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, byte {}", self.place, self.byte)
    }
}

/// Returns the texts of the user's messages before the model's first. Texts that a program adds for the model begin with
/// a tag; other conversations begin with the same ones.
fn opening(body: &Value) -> Vec<String> {
    let said =
        conversation::turns(body).take_while(|turn| !turn.is_models()).filter(|turn| turn.role == "user");
    let texts = said.flat_map(|turn| turn.texts().map(|text| text.trim().to_owned()).collect::<Vec<_>>());
    texts.filter(|text| !text.is_empty() && !text.starts_with('<')).collect()
}

/// Removes the marks of what is to be cached, which an agent moves from turn to turn.
fn unmark(block: &mut Value) {
    match block {
        Value::Object(object) => {
            object.shift_remove("cache_control");
            if let Some(content) = object.get_mut("content") {
                unmark(content);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(unmark),
        _ => {}
    }
}

/// Returns the text around a byte, cut at the bounds of characters.
fn excerpt(text: &str, byte: usize) -> String {
    let bound = |at: usize| (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let start = bound(byte.saturating_sub(BEFORE));
    text[start..bound(start + EXCERPT)].to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claude(bash: &str, git: &str, messages: Value) -> Prompt {
        Prompt::read(&json!({
            "model": "m",
            "messages": messages,
            "system": [{"type": "text", "text": "You are."}, {"type": "text", "text": git}],
            "tools": [{"name": "Edit"}, {"name": "Bash", "description": bash}],
        }))
    }

    fn user(text: &str) -> Value {
        json!({"role": "user", "content": [{"type": "text", "text": text}]})
    }

    #[test]
    fn the_first_byte_that_differs_is_named_in_the_caches_order() {
        let first = claude("by Opus (1M)", "clean", json!([user("do it")]));
        let check = |later: Prompt, wanted: Option<(&str, &str)>| {
            let found = later.leaves(&first);
            assert_eq!(found.as_ref().map(|d| (d.part, d.place.as_str())), wanted);
            found
        };
        let more = json!([user("do it"), {"role": "assistant", "content": "y"}, user("go on")]);
        check(claude("by Opus (1M)", "clean", more.clone()), None);
        // Tools come first, wherever they stand in the body.
        let found =
            check(claude("by Opus", "dirty", more.clone()), Some(("tools", "tools[1] (Bash)"))).unwrap();
        assert!(found.before.unwrap().contains("Opus (1M)") && found.after.unwrap().ends_with("Opus\"}"));
        let found = check(claude("by Opus (1M)", "?? x", more), Some(("system", "system[1]"))).unwrap();
        assert_eq!(found.byte, r#"{"type":"text","text":""#.len());
        assert!(found.same_bytes > found.byte && found.same_bytes < found.bytes);
        let found =
            check(claude("by Opus (1M)", "clean", json!([])), Some(("messages", "messages[0].content[0]")));
        assert_eq!(found.unwrap().after, None);
    }

    #[test]
    fn marks_and_the_form_of_a_text_make_no_difference() {
        let marked = json!({"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]});
        let plain = json!({"role": "user", "content": "x"});
        let of = |message: Value| Prompt::read(&json!({"messages": [message]}));
        assert_eq!(of(marked.clone()).leaves(&of(plain.clone())), None);
        assert_eq!(of(plain).leaves(&of(marked)), None);
    }

    #[test]
    fn the_attribution_block_can_be_left_out() {
        let of = |number: &str, git: &str| {
            let header = format!("x-anthropic-billing-header: cc_version=2; cch={number};");
            let system = [header.as_str(), git].map(|text| json!({"type": "text", "text": text}));
            Prompt::read(&json!({"system": system, "messages": [user("do it")]}))
        };
        let place = |later: Prompt, first: Prompt| later.leaves(&first).map(|found| found.place);
        assert_eq!(place(of("2", "dirty"), of("1", "clean")).as_deref(), Some("system[0]"));
        let bare = |number, git| of(number, git).without_attribution();
        assert_eq!(place(bare("2", "dirty"), bare("1", "clean")).as_deref(), Some("system[1]"));
        assert_eq!(place(bare("2", "clean"), bare("1", "clean")), None);
    }

    #[test]
    fn a_conversation_is_known_by_its_key_or_by_how_it_begins() {
        let of = |key: Option<&str>, texts: &[&str]| {
            let input: Vec<_> = texts.iter().map(|text| user(text)).collect();
            Prompt::read(&json!({"prompt_cache_key": key, "input": input}))
        };
        assert!(of(Some("a"), &["x"]).continues(&of(Some("a"), &["y"])));
        assert!(!of(Some("a"), &["x"]).continues(&of(Some("b"), &["x"])));
        assert!(of(None, &["<reminder>1", "do it\n"]).continues(&of(None, &["<reminder>2", "do it"])));
        assert!(!of(None, &["<reminder>", "do it"]).continues(&of(None, &["<reminder>", "do that"])));
        let talk = json!({"messages": [user("a"), {"role": "assistant", "content": "b"}, user("c")]});
        assert!(!Prompt::read(&talk).continues(&of(None, &["c"])), "only how it begins");
    }
}
