//! The prompt cache, billed as the real providers bill theirs: what of a request is read from it and written to it.
//!
//! Anthropic caches up to the blocks that a request marks (`marked`), OpenAI by itself ([`Steps`]). An entry expires, and
//! each read gives it its whole time again.

mod marked;

use std::{collections::HashMap, time::Duration};

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{refusal::Refusal, request::Dialect};

/// Bytes of a body for each token that is billed, as `answer::input_tokens` counts them.
const TOKEN_BYTES: u64 = 4;

/// Hash of a request up to one of its places, its model and account included.
type Hash = [u8; 32];

/// Prompt cache: prefixes of earlier requests, each with its expiry. Times are counted from the provider's start.
#[derive(Debug, Default)]
pub(super) struct Cache {
    entries: HashMap<Hash, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    lives: Duration,
    expires: Duration,
}

/// Prefixes of a request that its provider may cache.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    /// The dialect has no prompt cache.
    Uncached,
    Marked(marked::Blocks),
    Automatic(Steps),
}

/// Bytes of a request that were read from the cache, and bytes that were written to it for 5 minutes or for an hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cached {
    pub read: u64,
    pub written_5m: u64,
    pub written_1h: u64,
}

impl Prompt {
    /// Finds the prefixes of a decoded body that may be cached. Errors: cache marks that the provider refuses.
    pub fn read(dialect: Dialect, body: &[u8]) -> Result<Prompt, Refusal> {
        Ok(match dialect {
            Dialect::Embeddings | Dialect::Gemini => Prompt::Uncached,
            Dialect::OpenAi | Dialect::Responses => Prompt::Automatic(Steps::read(body)),
            Dialect::Anthropic => Prompt::Marked(marked::Blocks::read(body)?),
        })
    }
}

impl Cache {
    /// Looks a request up in the cache, and writes the prefixes that it lacks. `now`: time since the provider's start.
    pub fn pass(&mut self, prompt: &Prompt, now: Duration) -> Cached {
        match prompt {
            Prompt::Uncached => Cached::default(),
            Prompt::Marked(blocks) => blocks.pass(self, now),
            Prompt::Automatic(steps) => steps.pass(self, now),
        }
    }

    fn has(&self, hash: &Hash, now: Duration) -> bool {
        self.entries.get(hash).is_some_and(|entry| entry.expires > now)
    }

    /// Restarts the lifetime of an entry that is still in the cache.
    fn refresh(&mut self, hash: &Hash, now: Duration) {
        if let Some(entry) = self.entries.get_mut(hash).filter(|entry| entry.expires > now) {
            entry.expires = now + entry.lives;
        }
    }

    /// Stores a prefix for the time `lives`. A prefix that is stored for longer already keeps its expiry.
    fn write(&mut self, hash: Hash, lives: Duration, now: Duration) {
        let lives = match self.entries.get(&hash).filter(|entry| entry.expires > now) {
            Some(entry) => entry.lives.max(lives),
            None => lives,
        };
        self.entries.insert(hash, Entry { lives, expires: now + lives });
    }
}

/// Shortest prefix that is cached, in tokens.
const SHORTEST: u64 = 1024;

/// Step from one cached prefix length to the next, in tokens.
const STEP: u64 = 128;

/// Time for which a prefix is kept without being read, if the request asks for no longer one.
const LIVES: Duration = Duration::from_secs(10 * 60);

/// Time for which a prefix is kept if the request asks for `prompt_cache_retention: "24h"`.
const LIVES_LONG: Duration = Duration::from_secs(24 * 3600);

/// Hashes of a request's prefixes of 1,024, 1,152, … tokens: the prefixes that OpenAI caches, unasked. Writing them costs
/// nothing.
#[derive(Debug, PartialEq, Eq)]
pub struct Steps {
    hashes: Vec<Hash>,
    lives: Duration,
    /// Bytes of what the model reads, and of the whole body, by which input is billed.
    prompt_bytes: u64,
    body_bytes: u64,
}

impl Steps {
    /// Reads a decoded body. A body that is no JSON object, or too short, has no steps.
    ///
    /// Requests with different `prompt_cache_key`s are sent to different machines, and share no cache.
    pub fn read(body: &[u8]) -> Steps {
        let shortest = (SHORTEST * TOKEN_BYTES) as usize;
        let body_bytes = body.len() as u64;
        let none = Steps { hashes: Vec::new(), lives: LIVES, prompt_bytes: 1, body_bytes };
        if body.len() < shortest {
            return none;
        }
        let Ok(Value::Object(body)) = serde_json::from_slice(body) else { return none };
        let text = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default();
        let long = text("prompt_cache_retention") == "24h";
        let mut hash = Sha256::new_with_prefix(text("model"));
        hash.update(text("prompt_cache_key"));
        let prompt = prompt(&body);
        let mut hashes = Vec::new();
        for step in prompt.as_bytes().chunks_exact((STEP * TOKEN_BYTES) as usize) {
            hash.update(step);
            hashes.push(hash.clone().finalize().into());
        }
        // The steps below the shortest prefix are no entries of their own.
        hashes.drain(..hashes.len().min((SHORTEST / STEP) as usize - 1));
        let lives = if long { LIVES_LONG } else { LIVES };
        Steps { hashes, lives, prompt_bytes: prompt.len() as u64, body_bytes }
    }

    pub(super) fn pass(&self, cache: &mut Cache, now: Duration) -> Cached {
        let known = self.hashes.iter().rposition(|hash| cache.has(hash, now));
        for hash in &self.hashes {
            cache.write(*hash, self.lives, now);
        }
        let steps = known.map_or(0, |at| at as u64 + SHORTEST / STEP);
        let read = steps * STEP * TOKEN_BYTES * self.body_bytes / self.prompt_bytes;
        Cached { read, ..Cached::default() }
    }
}

/// Returns what the model reads, in its order: the schema of the answer, tools, instructions, messages.
fn prompt(body: &Map<String, Value>) -> String {
    let parts = ["response_format", "text", "tools", "system", "instructions", "messages", "input"];
    parts.iter().filter_map(|part| Some(body.get(*part)?.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(cache: &mut Cache, body: &Value, at_s: u64) -> u64 {
        Steps::read(body.to_string().as_bytes()).pass(cache, Duration::from_secs(at_s)).read
            / TOKEN_BYTES
            / STEP
            * STEP
    }

    fn body(messages: &[&str], more: Value) -> Value {
        let messages: Vec<_> = messages.iter().map(|m| json!({"role": "user", "content": m})).collect();
        let mut body = json!({"model": "m", "messages": messages});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    }

    #[test]
    fn a_conversation_that_grows_is_read_in_steps_of_128_tokens() {
        let mut cache = Cache::default();
        let long = "x".repeat(6000);
        assert_eq!(read(&mut cache, &body(&[&long], json!({})), 0), 0);
        let again = read(&mut cache, &body(&[&long, "y"], json!({})), 1);
        assert_eq!((again % STEP, again), (0, 6000 / 4 / STEP * STEP));
        // The tools come before the messages: nothing behind them is found.
        assert_eq!(read(&mut cache, &body(&[&long], json!({"tools": [{"name": "t"}]})), 2), 0);
    }

    #[test]
    fn nothing_below_1024_tokens_is_cached() {
        let mut cache = Cache::default();
        for at in 0..3 {
            assert_eq!(read(&mut cache, &body(&[&"x".repeat(4000)], json!({})), at), 0);
        }
    }

    #[test]
    fn another_key_is_another_cache_and_an_idle_entry_is_gone() {
        let mut cache = Cache::default();
        let of = |key: &str| body(&[&"x".repeat(5000)], json!({"prompt_cache_key": key}));
        let long = body(&[&"z".repeat(5000)], json!({"prompt_cache_retention": "24h"}));
        assert_eq!(read(&mut cache, &of("a"), 0), 0);
        assert_eq!(read(&mut cache, &of("b"), 0), 0);
        assert_eq!(read(&mut cache, &long, 0), 0);
        assert_eq!(read(&mut cache, &of("a"), 599), 1152);
        // Reading it gave it its time again.
        assert_eq!(read(&mut cache, &of("a"), 1198), 1152);
        assert_eq!(read(&mut cache, &of("b"), 1198), 0);
        assert_eq!(read(&mut cache, &long, 80_000), 1152);
    }
}
