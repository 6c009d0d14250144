//! The prompt cache, billed as the real providers bill theirs: what of a request is read from it and written to it.
//!
//! Anthropic caches up to the blocks that a request marks (`marked`), OpenAI by itself in steps of 128 tokens
//! (`automatic`). An entry expires, and each read gives it its whole time again.

mod automatic;
mod marked;

use std::{collections::HashMap, time::Duration};

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
    Automatic(automatic::Steps),
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
            Dialect::OpenAi | Dialect::Responses => Prompt::Automatic(automatic::Steps::read(body)),
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
