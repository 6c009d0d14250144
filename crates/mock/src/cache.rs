//! The prompt cache: prefixes of requests seen so far, and the tokens that are read from and written to it.

use std::collections::HashSet;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::request::Dialect;

/// Smallest prompt, in bytes, that OpenAI caches unasked: 1,024 tokens.
const AUTOMATIC_FROM_BYTES: usize = 4096;

/// Prefixes written so far. They are kept for the life of the provider: no entry expires.
#[derive(Debug, Default)]
pub(super) struct Cache {
    written: HashSet<[u8; 32]>,
}

/// A request up to the end of one of its blocks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    hash: [u8; 32],
    bytes: u64,
    mark: Option<Ttl>,
}

/// Time for which a marked prefix is kept, on which the price of writing it depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ttl {
    FiveMinutes,
    OneHour,
}

/// Bytes of a request that were in the cache, and bytes that were written to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cached {
    pub read: u64,
    pub written_5m: u64,
    pub written_1h: u64,
}

impl Cache {
    /// Looks up a request's prefixes and writes its marked ones.
    ///
    /// The longest known prefix is read even if its own mark has moved on; the blocks after it up to the last
    /// mark are written. Nothing after the last mark is cached.
    pub fn pass(&mut self, prefixes: &[Prefix]) -> Cached {
        let Some(last) = prefixes.iter().rposition(|prefix| prefix.mark.is_some()) else {
            return Cached::default();
        };
        let marked = &prefixes[..=last];
        let known = marked.iter().rposition(|prefix| self.written.contains(&prefix.hash));
        let read = known.map_or(0, |at| marked[at].bytes);
        let mut cached = Cached { read, ..Cached::default() };
        let mut upto = read;
        for prefix in &marked[known.map_or(0, |at| at + 1)..] {
            let Some(ttl) = prefix.mark else { continue };
            match ttl {
                Ttl::FiveMinutes => cached.written_5m += prefix.bytes - upto,
                Ttl::OneHour => cached.written_1h += prefix.bytes - upto,
            }
            upto = prefix.bytes;
            self.written.insert(prefix.hash);
        }
        cached
    }
}

/// Returns the prefixes of a request that can be cached: none if the request does not ask for it and is not
/// large.
pub(super) fn prefixes(dialect: Dialect, body: &[u8]) -> Vec<Prefix> {
    let cacheable = match dialect {
        Dialect::OpenAi | Dialect::Responses => body.len() >= AUTOMATIC_FROM_BYTES,
        Dialect::Embeddings | Dialect::Gemini => false,
        Dialect::Anthropic => memchr::memmem::find(body, b"\"cache_control\"").is_some(),
    };
    if !cacheable {
        return Vec::new();
    }
    let Ok(Value::Object(mut body)) = serde_json::from_slice(body) else { return Vec::new() };
    let mut chain = Chain::new(&body);
    for part in ["tools", "system", "messages"] {
        match body.shift_remove(part) {
            Some(Value::Array(blocks)) if part == "messages" => {
                blocks.into_iter().for_each(|message| chain.push_message(message));
            }
            Some(Value::Array(blocks)) => blocks.into_iter().for_each(|block| chain.push(part, block)),
            Some(Value::String(text)) => chain.push(part, text_block(text)),
            _ => {}
        }
    }
    let whole = body.get("cache_control").map(ttl);
    if let Some(last) = chain.prefixes.last_mut() {
        match dialect {
            Dialect::OpenAi | Dialect::Responses | Dialect::Embeddings => last.mark = Some(Ttl::FiveMinutes),
            Dialect::Anthropic | Dialect::Gemini => last.mark = last.mark.or(whole),
        }
    }
    chain.prefixes
}

/// Running hash over a request's blocks. Marks are left out, because an agent moves them from turn to turn.
struct Chain {
    hash: Sha256,
    bytes: u64,
    prefixes: Vec<Prefix>,
}

impl Chain {
    fn new(body: &Map<String, Value>) -> Self {
        // Caches are per model.
        let model = body.get("model").and_then(Value::as_str).unwrap_or_default();
        Self { hash: Sha256::new_with_prefix(model), bytes: 0, prefixes: Vec::new() }
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
        let mark = take_mark(&mut block);
        let block = block.to_string();
        self.hash.update(frame);
        self.hash.update(&block);
        self.bytes += block.len() as u64;
        let hash = self.hash.clone().finalize().into();
        self.prefixes.push(Prefix { hash, bytes: self.bytes, mark });
    }
}

/// Wraps a text in a list of one text block, as both APIs do.
fn text_block(text: String) -> Value {
    serde_json::json!({"type": "text", "text": text})
}

/// Removes a block's mark. A mark on a block inside it (of a tool result) marks the block itself.
fn take_mark(block: &mut Value) -> Option<Ttl> {
    let object = block.as_object_mut()?;
    let own = object.shift_remove("cache_control").filter(|mark| !mark.is_null());
    let inner = match object.get_mut("content") {
        Some(Value::Array(inner)) => inner.iter_mut().filter_map(take_mark).last(),
        _ => None,
    };
    own.as_ref().map(ttl).or(inner)
}

fn ttl(mark: &Value) -> Ttl {
    if mark["ttl"] == "1h" { Ttl::OneHour } else { Ttl::FiveMinutes }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(text: &str) -> Value {
        json!({"type": "text", "text": text})
    }

    fn marked(text: &str, ttl: &str) -> Value {
        json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral", "ttl": ttl}})
    }

    fn pass(cache: &mut Cache, system: Value, content: Value) -> Cached {
        let body =
            json!({"model": "m", "system": system, "messages": [{"role": "user", "content": content}]});
        cache.pass(&prefixes(Dialect::Anthropic, body.to_string().as_bytes()))
    }

    #[test]
    fn a_prefix_is_written_once_and_read_afterwards() {
        let mut cache = Cache::default();
        let size = text("aaaa").to_string().len() as u64;
        let mut check = |system, content, read, written_5m, written_1h| {
            assert_eq!(pass(&mut cache, system, content), Cached { read, written_5m, written_1h });
        };
        check(json!([text("aaaa")]), json!("bbbb"), 0, 0, 0);
        check(json!([marked("aaaa", "1h")]), json!([marked("bbbb", "5m"), text("c")]), 0, size, size);
        check(json!([marked("aaaa", "1h")]), json!([marked("bbbb", "5m"), text("c")]), 2 * size, 0, 0);
        // The mark moved on, and a text stands for its block: the old prefix is still found.
        check(json!("aaaa"), json!([text("bbbb"), marked("dddd", "5m")]), 2 * size, size, 0);
        check(json!([marked("other", "5m")]), json!("bbbb"), 0, size + 1, 0);
    }

    #[test]
    fn a_conversation_that_grows_is_read_from_the_cache_without_being_asked() {
        let mut cache = Cache::default();
        let long = "x".repeat(5000);
        let mut messages = vec![json!({"role": "user", "content": long})];
        let mut pass = |messages: &[Value]| {
            let body = json!({"model": "m", "messages": messages}).to_string();
            cache.pass(&prefixes(Dialect::OpenAi, body.as_bytes())).read
        };
        assert_eq!(pass(&messages), 0);
        messages.push(json!({"role": "assistant", "content": "y"}));
        assert!(pass(&messages) > 5000);
        assert_eq!(pass(&[json!({"role": "user", "content": "short"})]), 0);
    }
}
