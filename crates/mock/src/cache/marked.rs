//! Anthropic's cache: up to four marked blocks, in the order tools, system, messages.
//!
//! A request writes an entry at each of its marks, and finds entries at its marks and at the blocks shortly before
//! them. A prefix shorter than the model's minimum is not cached, and nobody is told.

use std::time::Duration;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{Cache, Cached, Hash, TOKEN_BYTES};
use crate::refusal::Refusal;

/// Most marks of one request.
const MARKS: usize = 4;

/// Beginning of the block that Claude Code puts before its system text. api.anthropic.com takes the block out before it
/// looks into its cache: a number in the block may be another in each request.
const ATTRIBUTION: &str = "x-anthropic-billing-header:";

/// Number of blocks before a mark, itself included, at which an entry is looked for.
const LOOK_BACK: usize = 20;

/// A request's blocks, in the order in which Anthropic caches them: tools, system, messages.
#[derive(Debug, PartialEq, Eq)]
pub struct Blocks {
    blocks: Vec<Block>,
    /// Length in bytes of the shortest prefix that the model caches.
    shortest: u64,
}

/// Part of a request up to the end of one of its blocks.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    hash: Hash,
    bytes: u64,
    mark: Option<Ttl>,
}

/// Time for which a marked prefix is kept, on which the price of writing it depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ttl {
    FiveMinutes,
    OneHour,
}

impl Ttl {
    fn of(mark: &Value) -> Ttl {
        if mark["ttl"] == "1h" { Ttl::OneHour } else { Ttl::FiveMinutes }
    }

    fn lives(self) -> Duration {
        Duration::from_secs(match self {
            Ttl::FiveMinutes => 5 * 60,
            Ttl::OneHour => 60 * 60,
        })
    }
}

impl Blocks {
    /// Reads a decoded body. A body without cache marks, or that is no JSON object, has no blocks.
    ///
    /// Errors: more than four marks; a mark for an hour behind one for five minutes.
    pub fn read(body: &[u8]) -> Result<Blocks, Refusal> {
        let none = Blocks { blocks: Vec::new(), shortest: 0 };
        if memchr::memmem::find(body, b"\"cache_control\"").is_none() {
            return Ok(none);
        }
        let Ok(Value::Object(mut body)) = serde_json::from_slice(body) else { return Ok(none) };
        let model = body.get("model").and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut chain = Chain::new(&model);
        for part in ["tools", "system", "messages"] {
            if part == "messages" {
                chain.settings(&body);
            }
            match body.shift_remove(part) {
                Some(Value::Array(blocks)) if part == "messages" => {
                    blocks.into_iter().for_each(|message| chain.push_message(message));
                }
                Some(Value::Array(blocks)) => {
                    let is_taken_out = part == "system" && blocks.first().is_some_and(is_attribution);
                    let blocks = blocks.into_iter().skip(usize::from(is_taken_out));
                    blocks.for_each(|block| chain.push(part, block));
                }
                Some(Value::String(text)) => chain.push(part, text_block(text)),
                _ => {}
            }
        }
        let whole = body.get("cache_control").filter(|mark| !mark.is_null()).map(Ttl::of);
        if let (Some(whole), Some(last)) = (whole, chain.blocks.last_mut()) {
            chain.marks += usize::from(last.mark.is_none());
            last.mark = last.mark.or(Some(whole));
        }
        chain.finish(shortest(&model))
    }

    /// Counts the longest cached prefix that a mark reaches as read, and writes the blocks behind it, up to the last
    /// mark, to the cache. `now`: time since the provider's start.
    pub(super) fn pass(&self, cache: &mut Cache, now: Duration) -> Cached {
        let marks = || self.blocks.iter().enumerate().filter_map(|(at, b)| Some((at, b, b.mark?)));
        let reached = |mark: usize| (mark.saturating_sub(LOOK_BACK - 1)..=mark).rev();
        let known = marks()
            .filter_map(|(mark, ..)| reached(mark).find(|at| cache.has(&self.blocks[*at].hash, now)))
            .max();
        let read = known.map_or(0, |at| self.blocks[at].bytes);
        for block in &self.blocks[..known.map_or(0, |at| at + 1)] {
            cache.refresh(&block.hash, now);
        }
        let mut cached = Cached { read, ..Cached::default() };
        let mut upto = read;
        for (_, block, ttl) in marks().filter(|(_, block, _)| block.bytes >= self.shortest) {
            cache.write(block.hash, ttl.lives(), now);
            let new = block.bytes.saturating_sub(upto);
            match ttl {
                Ttl::FiveMinutes => cached.written_5m += new,
                Ttl::OneHour => cached.written_1h += new,
            }
            upto = upto.max(block.bytes);
        }
        cached
    }
}

/// Returns the bytes of the shortest prefix that a model caches, as Anthropic publishes them in tokens.
fn shortest(model: &str) -> u64 {
    let is = |names: &[&str]| names.iter().any(|name| model.contains(name));
    let tokens = match () {
        () if is(&["opus-4-5", "opus-4-6", "opus-4-7", "haiku-4-5"]) => 4096,
        () if is(&["haiku"]) => 2048,
        () => 1024,
    };
    tokens * TOKEN_BYTES
}

/// Running hash over a request's blocks. Marks are left out, because an agent moves them from turn to turn.
struct Chain {
    hash: Sha256,
    bytes: u64,
    blocks: Vec<Block>,
    marks: usize,
}

impl Chain {
    fn new(model: &str) -> Self {
        // Caches are per model.
        Self { hash: Sha256::new_with_prefix(model), bytes: 0, blocks: Vec::new(), marks: 0 }
    }

    /// Adds the settings that make all messages others, and leave tools and system as they are.
    fn settings(&mut self, body: &Map<String, Value>) {
        for name in ["tool_choice", "thinking"] {
            if let Some(value) = body.get(name) {
                self.hash.update(name);
                self.hash.update(value.to_string());
            }
        }
    }

    fn push_message(&mut self, message: Value) {
        let Value::Object(mut message) = message else { return };
        let content = message.shift_remove("content");
        // Role, tool calls and tool call ids are part of the prefix as well.
        let frame = Value::Object(message).to_string();
        match content {
            Some(Value::Array(blocks)) => blocks.into_iter().for_each(|block| self.push(&frame, block)),
            Some(Value::String(text)) => self.push(&frame, text_block(text)),
            _ => self.push(&frame, Value::Null),
        }
    }

    fn push(&mut self, frame: &str, mut block: Value) {
        let mark = self.take_mark(&mut block);
        let block = block.to_string();
        self.hash.update(frame);
        self.hash.update(&block);
        self.bytes += block.len() as u64;
        let hash = self.hash.clone().finalize().into();
        self.blocks.push(Block { hash, bytes: self.bytes, mark });
    }

    /// Removes a block's mark. A mark on a block inside it (of a tool result) marks the block itself.
    fn take_mark(&mut self, block: &mut Value) -> Option<Ttl> {
        let object = block.as_object_mut()?;
        let own = object.shift_remove("cache_control").filter(|mark| !mark.is_null());
        self.marks += usize::from(own.is_some());
        let inner = match object.get_mut("content") {
            Some(Value::Array(inner)) => inner.iter_mut().filter_map(|block| self.take_mark(block)).last(),
            _ => None,
        };
        own.as_ref().map(Ttl::of).or(inner)
    }

    fn finish(self, shortest: u64) -> Result<Blocks, Refusal> {
        if self.marks > MARKS {
            return Err(Refusal::bad(format!(
                "a maximum of {MARKS} blocks with cache_control may be provided, found {}",
                self.marks
            )));
        }
        let mut ttls = self.blocks.iter().filter_map(|block| block.mark);
        if ttls.by_ref().any(|ttl| ttl == Ttl::FiveMinutes) && ttls.any(|ttl| ttl == Ttl::OneHour) {
            return Err(Refusal::bad(
                "cache_control.ttl: a block with ttl='1h' must not come after one with ttl='5m'",
            ));
        }
        Ok(Blocks { blocks: self.blocks, shortest })
    }
}

fn is_attribution(block: &Value) -> bool {
    block["text"].as_str().is_some_and(|text| text.starts_with(ATTRIBUTION))
}

/// Wraps a text in a list of one text block, as the API does.
fn text_block(text: String) -> Value {
    serde_json::json!({"type": "text", "text": text})
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Letters that make a block of 1,024 tokens or more.
    fn long(letter: &str) -> String {
        letter.repeat(4096)
    }

    fn text(text: &str) -> Value {
        json!({"type": "text", "text": text})
    }

    fn marked(text: &str, ttl: &str) -> Value {
        json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral", "ttl": ttl}})
    }

    fn body(model: &str, system: Value, content: Value) -> Value {
        json!({"model": model, "system": system, "messages": [{"role": "user", "content": content}]})
    }

    fn pass(cache: &mut Cache, body: &Value, at_s: u64) -> Cached {
        let blocks = Blocks::read(body.to_string().as_bytes()).unwrap();
        blocks.pass(cache, Duration::from_secs(at_s))
    }

    #[test]
    fn a_prefix_is_written_once_and_read_afterwards() {
        let mut cache = Cache::default();
        let (a, b, d) = (long("a"), long("b"), long("d"));
        let size = text(&a).to_string().len() as u64;
        let mut check = |system, content, read, written_5m, written_1h| {
            let body = body("m", system, content);
            assert_eq!(pass(&mut cache, &body, 0), Cached { read, written_5m, written_1h });
        };
        check(json!([text(&a)]), json!("bbbb"), 0, 0, 0);
        check(json!([marked(&a, "1h")]), json!([marked(&b, "5m"), text("c")]), 0, size, size);
        check(json!([marked(&a, "1h")]), json!([marked(&b, "5m"), text("c")]), 2 * size, 0, 0);
        // The mark moved on, and a text stands for its block: the old prefix is still found.
        check(json!(a), json!([text(&b), marked(&d, "5m")]), 2 * size, size, 0);
        check(json!([marked(&(a.clone() + "!"), "5m")]), json!("bbbb"), 0, size + 1, 0);
    }

    #[test]
    fn a_prefix_below_the_models_minimum_is_not_cached() {
        for (model, blocks) in [("claude-opus-4-8", 1), ("claude-3-5-haiku", 2), ("claude-opus-4-6", 4)] {
            let mut cache = Cache::default();
            // A block of a little less than 1,024 tokens more than `n` whole ones.
            let of = |n: usize| body(model, json!([marked(&"x".repeat(n * 4096 - 200), "5m")]), json!("y"));
            for (body, is_cached) in [(of(blocks), false), (of(blocks + 1), true)] {
                assert_eq!(pass(&mut cache, &body, 0).written_5m > 0, is_cached, "{model}");
                assert_eq!(pass(&mut cache, &body, 0).read > 0, is_cached, "{model}");
            }
        }
    }

    #[test]
    fn an_entry_lives_for_its_time_and_each_read_begins_it_anew() {
        let mut cache = Cache::default();
        let of = |ttl: &str| body("m", json!([marked(&long(ttl), ttl)]), json!("y"));
        for (ttl, minutes) in [("5m", 5), ("1h", 60)] {
            let is_read = |cache: &mut Cache, at_s| pass(cache, &of(ttl), at_s).read > 0;
            let lives = minutes * 60;
            assert!(!is_read(&mut cache, 0));
            assert!(is_read(&mut cache, lives - 1));
            assert!(is_read(&mut cache, 2 * lives - 2));
            assert!(!is_read(&mut cache, 3 * lives - 2), "{ttl}");
        }
    }

    #[test]
    fn an_entry_is_found_twenty_blocks_back_and_no_further() {
        let content = |more: usize| {
            let mut blocks = vec![text(&long("x"))];
            blocks.extend((0..more).map(|n| text(&n.to_string())));
            let last = blocks.pop().unwrap();
            blocks.push(marked(last["text"].as_str().unwrap(), "5m"));
            body("m", json!("s"), json!(blocks))
        };
        for (more, is_found) in [(19, true), (20, false)] {
            let mut cache = Cache::default();
            pass(&mut cache, &content(0), 0);
            assert_eq!(pass(&mut cache, &content(more), 0).read > 0, is_found, "{more} blocks more");
        }
    }

    #[test]
    fn another_model_tool_choice_or_tool_is_another_prefix() {
        let mut cache = Cache::default();
        let with = |name: &str, value: Value| {
            let mut body = body("m", json!([marked(&long("s"), "5m")]), json!([marked(&long("x"), "5m")]));
            body[name] = value;
            body
        };
        let first = pass(&mut cache, &with("max_tokens", json!(9)), 0);
        assert_eq!(pass(&mut cache, &with("max_tokens", json!(10)), 0).read, first.written_5m);
        // The tools and the system text are kept.
        let kept = pass(&mut cache, &with("tool_choice", json!({"type": "any"})), 0).read;
        assert!(kept > 0 && kept < first.written_5m, "{kept}");
        assert_eq!(pass(&mut cache, &with("tools", json!([{"name": "t"}])), 0).read, 0);
        assert_eq!(pass(&mut cache, &with("model", json!("n")), 0).read, 0);
    }

    #[test]
    fn the_attribution_block_is_taken_out_where_it_comes_first() {
        let header = |number: &str| text(&format!("{ATTRIBUTION} cc_version=2; cch={number};"));
        let is_read = |first: Value, second: Value| {
            let mut cache = Cache::default();
            pass(&mut cache, &body("m", first, json!("y")), 0);
            pass(&mut cache, &body("m", second, json!("y")), 0).read > 0
        };
        let system = || marked(&long("s"), "5m");
        assert!(is_read(json!([header("1"), system()]), json!([header("2"), system()])));
        assert!(is_read(json!([header("1"), system()]), json!([system()])));
        let own = || text("Mine.");
        assert!(!is_read(json!([own(), header("1"), system()]), json!([own(), header("2"), system()])));
    }

    #[test]
    fn marks_that_the_provider_would_refuse_are_refused() {
        let read = |content: Value| Blocks::read(body("m", json!("s"), content).to_string().as_bytes());
        let marks = |n: usize| json!(vec![marked("x", "5m"); n]);
        assert!(read(marks(4)).is_ok());
        assert!(read(marks(5)).is_err());
        assert!(read(json!([marked("x", "1h"), marked("y", "5m")])).is_ok());
        assert!(read(json!([marked("x", "5m"), marked("y", "1h")])).is_err());
    }
}
