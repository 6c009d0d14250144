//! Requests for a message, in any dialect: read once, checked strictly.

use std::{borrow::Cow, fmt, io::Read};

use bytes::Bytes;
use http::{HeaderMap, header};
use outlast_core::words::Digest;
use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, SeqAccess, Visitor},
};
use sha2::{Digest as _, Sha256};

use super::script::{self, Script};
use crate::refusal::{MAX_BODY, Refusal};

/// API whose shape a request and its answer have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// OpenAI's chat completions.
    OpenAi,
    Responses,
    Embeddings,
    Anthropic,
    Gemini,
}

impl Dialect {
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Responses => "responses",
            Self::Embeddings => "embeddings",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }

    pub fn is_openai(self) -> bool {
        matches!(self, Self::OpenAi | Self::Responses | Self::Embeddings)
    }
}

/// A request whose body was read and checked.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub dialect: Dialect,
    /// Body after decoding.
    pub body: &'a [u8],
    /// SHA-256 of path and decoded body.
    pub digest: Digest,
    pub wire: Wire<'a>,
}

/// Fields of all dialects that an answer depends on; all other fields are ignored.
#[derive(Debug, Deserialize)]
pub(super) struct Wire<'a> {
    pub model: String,
    /// Messages; for a response, its expanded items.
    #[serde(borrow)]
    messages: Vec<Message<'a>>,
    #[serde(borrow, default)]
    system: Text<'a>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    n: Option<u32>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    pub max_output_tokens: Option<u64>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<ToolChoice>,
    thinking: Option<Thinking>,
    reasoning_effort: Option<String>,
    reasoning: Option<Reasoning>,
    pub previous_response_id: Option<String>,
    pub store: Option<bool>,
    pub service_tier: Option<String>,
    /// Whether a stream is one JSON array; `None` if the request does not say.
    array: Option<bool>,
    /// Length of each vector, for embeddings; `None`: the default.
    pub dimensions: Option<usize>,
    pub encoding_format: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Message<'a> {
    /// Role; empty for items of responses that are not messages.
    #[serde(default)]
    role: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(borrow, default)]
    content: Text<'a>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Reasoning {
    effort: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Tool {
    #[serde(default, rename = "type")]
    kind: String,
    name: Option<String>,
    function: Option<Named>,
    custom: Option<Named>,
    max_uses: Option<u64>,
    /// Tools of a namespace of the Responses API.
    #[serde(default)]
    tools: Vec<Tool>,
}

#[derive(Debug, Deserialize)]
struct Named {
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ToolChoice {
    Word(String),
    Object {
        #[serde(rename = "type")]
        kind: String,
    },
}

#[derive(Debug, Deserialize)]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
    budget_tokens: Option<u64>,
}

/// The text of a message's content, and the number of tool results in it.
#[derive(Debug, Default)]
struct Text<'a> {
    text: Cow<'a, str>,
    tool_results: usize,
}

impl<'a> Request<'a> {
    /// Reads and checks a decoded body sent to `path`. Errors: the refusal that the provider would answer.
    pub fn read(dialect: Dialect, path: &str, body: &'a [u8]) -> Result<Self, Refusal> {
        let wire: Wire = serde_json::from_slice(body)
            .map_err(|error| Refusal::bad(format!("the body is not a request for a message: {error}")))?;
        wire.check(dialect).map_err(Refusal::bad)?;
        let digest = Sha256::new().chain_update(path).chain_update("\n").chain_update(body).finalize();
        Ok(Self { dialect, body, digest: Digest(digest.into()), wire })
    }

    pub fn streams(&self) -> bool {
        self.wire.stream.unwrap_or(false)
    }

    /// Returns whether the answer is streamed as the elements of one JSON array, as Gemini does.
    pub fn is_array(&self) -> bool {
        self.wire.array.unwrap_or(false)
    }

    /// Returns whether the request asks that a stream ends with OpenAI's usage chunk.
    pub fn includes_usage(&self) -> bool {
        self.wire.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// Returns the number of choices that the request asks for; each is billed.
    pub fn choices(&self) -> u32 {
        self.wire.n.unwrap_or(1)
    }

    /// Returns the largest number of output tokens of one choice, reasoning included; `u64::MAX` without a cap.
    pub fn cap(&self) -> u64 {
        let wire = &self.wire;
        wire.max_completion_tokens.or(wire.max_tokens).or(wire.max_output_tokens).unwrap_or(u64::MAX)
    }

    /// Returns whether the answer is preceded by thinking: shown by Anthropic, only billed by OpenAI.
    pub fn thinks(&self) -> bool {
        match self.dialect {
            Dialect::Anthropic | Dialect::Gemini => {
                self.wire.thinking.as_ref().is_some_and(|thinking| thinking.kind != "disabled")
            }
            Dialect::OpenAi => self.wire.reasoning_effort.as_ref().is_some_and(|effort| effort != "none"),
            Dialect::Embeddings => false,
            Dialect::Responses => self.wire.effort().is_some_and(|effort| effort != "none"),
        }
    }

    /// Returns the script of the `mock:` lines, and the number of tool results since the message that has them.
    ///
    /// The last user message without tool results decides (agents add reminders to messages with results). If it has no
    /// `mock:` line, an earlier one decides whose tool calls have not all had their results: somebody interrupted it. Else the
    /// system text decides, for the whole conversation.
    pub fn script(&self) -> Result<(Script, usize), Refusal> {
        if memchr::memmem::find(self.body, b"mock:").is_none() {
            return Ok((Script::default(), 0));
        }
        let users = self.wire.users_with_lines();
        let last = self.wire.last_user();
        for at in users.iter().rev().copied() {
            let script = self.script_of(&self.wire.messages[at].content.text)?;
            let results = self.wire.results_since(at);
            // The last results of an interrupted script are followed by its answer.
            let is_under_way =
                results < script.tools.len() || last.is_some_and(|n| self.wire.results_since(n) > 0);
            if Some(at) == last || (is_under_way && !script.tools.is_empty()) {
                return Ok((script, results));
            }
        }
        Ok((self.script_of(&self.wire.system_text())?, self.wire.results_since(0)))
    }

    fn script_of(&self, text: &str) -> Result<Script, Refusal> {
        let users = self.wire.messages.iter().filter(|m| m.role == "user");
        let said = |words: &str| users.clone().any(|m| script::spoken(&m.content.text).contains(words));
        Script::read(text, said).map_err(|error| Refusal::bad(error.to_string()))
    }

    /// Returns the text of the last user message without tool results, cut after 4,000 characters; empty without one.
    pub fn asked(&self) -> &str {
        const LONGEST: usize = 4000;
        let mut users =
            self.wire.messages.iter().rev().filter(|m| m.role == "user" && m.content.tool_results == 0);
        let text = users.next().map_or("", |m| &*m.content.text);
        text.char_indices().nth(LONGEST).map_or(text, |(end, _)| &text[..end])
    }

    /// Returns whether the tool `name` takes free text instead of JSON.
    pub fn is_custom(&self, name: &str) -> bool {
        self.wire.tools.iter().flatten().any(|tool| tool.kind == "custom" && tool.name() == Some(name))
    }

    /// Returns the number of messages; for embeddings, of inputs.
    pub fn messages(&self) -> usize {
        self.wire.messages.len()
    }

    /// Returns how many searches of the provider's own the request allows at most; 0 if it offers no search tool.
    pub fn max_searches(&self) -> u64 {
        let search = self.wire.tools.iter().flatten().find(|tool| tool.kind.starts_with("web_search_"));
        search.map_or(0, |tool| tool.max_uses.unwrap_or(10))
    }

    /// Returns the kinds of the tools that are offered and have no name to be called by, such as a provider's own; empty if the
    /// answer may call none.
    pub fn nameless_tools(&self) -> Vec<&str> {
        if self.wire.tool_choice.as_ref().is_some_and(ToolChoice::is_none) {
            return Vec::new();
        }
        let tools = self.wire.tools.iter().flatten();
        tools.filter(|tool| tool.names().is_empty()).map(|tool| &*tool.kind).collect()
    }

    /// Returns the names of the tools that the answer may call; `NAMESPACE/NAME` for one in a namespace.
    pub fn tools(&self) -> Vec<String> {
        if self.wire.tool_choice.as_ref().is_some_and(ToolChoice::is_none) {
            return Vec::new();
        }
        self.wire.tools.iter().flatten().flat_map(Tool::names).collect()
    }
}

impl Wire<'_> {
    pub fn effort(&self) -> Option<&str> {
        self.reasoning.as_ref()?.effort.as_deref()
    }

    /// Refuses what the real APIs refuse as well, so that a proxy that writes such a request is found out here.
    fn check(&self, dialect: Dialect) -> Result<(), String> {
        if self.messages.is_empty() {
            return Err("messages: wanted at least one, had none".into());
        }
        match dialect {
            Dialect::OpenAi => self.check_openai(),
            Dialect::Responses => self.check_responses(),
            Dialect::Embeddings => self.check_embeddings(),
            Dialect::Anthropic => self.check_anthropic(),
            // The members were checked when the request was rewritten.
            Dialect::Gemini => Ok(()),
        }
    }

    fn check_responses(&self) -> Result<(), String> {
        let known = ["developer", "system", "user", "assistant"];
        let is_message = |m: &&Message| matches!(&*m.kind, "" | "message");
        if let Some(message) = self.messages.iter().filter(is_message).find(|m| !known.contains(&&*m.role)) {
            return Err(format!("input: wanted a role of {known:?}, had {:?}", message.role));
        }
        if self.max_tokens.is_some() || self.max_completion_tokens.is_some() || self.n.is_some() {
            return Err("max_tokens, max_completion_tokens, n: unknown parameters".into());
        }
        if self.stream_options.as_ref().is_some_and(|options| options.include_usage.is_some()) {
            return Err("stream_options.include_usage: unknown parameter".into());
        }
        match self.max_output_tokens {
            Some(cap @ 0..16) => Err(format!("max_output_tokens: wanted at least 16, had {cap}")),
            _ => Ok(()),
        }
    }

    fn check_embeddings(&self) -> Result<(), String> {
        if self.stream.is_some() || self.stream_options.is_some() || self.cap_is_there() || self.n.is_some() {
            return Err("stream, stream_options, n, max_…tokens: unknown parameters".into());
        }
        match self.dimensions {
            Some(n) if !(1..=3072).contains(&n) => Err(format!("dimensions: wanted 1 to 3072, had {n}")),
            _ => Ok(()),
        }
    }

    fn cap_is_there(&self) -> bool {
        self.max_tokens.is_some() || self.max_completion_tokens.is_some() || self.max_output_tokens.is_some()
    }

    fn check_openai(&self) -> Result<(), String> {
        let known = ["developer", "system", "user", "assistant", "tool", "function"];
        if let Some(message) = self.messages.iter().find(|m| !known.contains(&&*m.role)) {
            return Err(format!("messages: wanted a role of {known:?}, had {:?}", message.role));
        }
        if self.stream_options.is_some() && self.stream != Some(true) {
            return Err("stream_options: wanted only with \"stream\": true".into());
        }
        if self.max_tokens.is_some() && self.max_completion_tokens.is_some() {
            return Err("wanted one of max_tokens and max_completion_tokens, had both".into());
        }
        if self.max_tokens == Some(0) || self.max_completion_tokens == Some(0) {
            return Err("max_tokens, max_completion_tokens: wanted at least 1, had 0".into());
        }
        match self.n {
            Some(n) if !(1..=128).contains(&n) => Err(format!("n: wanted 1 to 128, had {n}")),
            _ => Ok(()),
        }
    }

    fn check_anthropic(&self) -> Result<(), String> {
        let known = ["user", "assistant", "system"];
        if let Some(message) = self.messages.iter().find(|m| !known.contains(&&*m.role)) {
            return Err(format!("messages: wanted a role of {known:?}, had {:?}", message.role));
        }
        if self.stream_options.is_some() || self.max_completion_tokens.is_some() || self.n.is_some() {
            return Err("stream_options, max_completion_tokens, n: extra inputs are not permitted".into());
        }
        let cap = self.max_tokens.ok_or("max_tokens: field required")?;
        if cap == 0 {
            return Err("max_tokens: wanted at least 1, had 0".into());
        }
        match &self.thinking {
            Some(Thinking { kind, budget_tokens }) if kind == "enabled" => match budget_tokens {
                Some(budget) if (1024..cap).contains(budget) => Ok(()),
                had => Err(format!(
                    "thinking.budget_tokens: wanted at least 1024 and less than max_tokens ({cap}), had {had:?}"
                )),
            },
            Some(Thinking { kind, .. }) if !["disabled", "adaptive"].contains(&&**kind) => {
                Err(format!("thinking.type: wanted enabled, disabled or adaptive, had {kind:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the index of the last user message without tool results.
    fn last_user(&self) -> Option<usize> {
        self.messages.iter().rposition(|m| m.role == "user" && m.content.tool_results == 0)
    }

    /// Returns the indexes of the user messages without tool results that have `mock:` lines, oldest first.
    fn users_with_lines(&self) -> Vec<usize> {
        let has_lines =
            |m: &Message| m.role == "user" && m.content.tool_results == 0 && script::is_in(&m.content.text);
        self.messages.iter().enumerate().filter(|(_, m)| has_lines(m)).map(|(at, _)| at).collect()
    }

    /// Returns the number of tool results from a message on.
    fn results_since(&self, at: usize) -> usize {
        self.messages[at..].iter().map(Message::tool_results).sum()
    }

    fn system_text(&self) -> String {
        let mut system = self.system.text.to_string();
        for message in self.messages.iter().filter(|m| m.role == "system" || m.role == "developer") {
            system.push('\n');
            system.push_str(&message.content.text);
        }
        system
    }
}

impl Message<'_> {
    fn tool_results(&self) -> usize {
        match &*self.role {
            "tool" | "function" => 1,
            "" if self.kind.ends_with("_output") => 1,
            _ => self.content.tool_results,
        }
    }
}

impl Tool {
    fn names(&self) -> Vec<String> {
        match self.name().filter(|_| !self.tools.is_empty()) {
            Some(namespace) => {
                self.tools.iter().filter_map(Tool::name).map(|name| format!("{namespace}/{name}")).collect()
            }
            None => self.name().map(str::to_owned).into_iter().collect(),
        }
    }

    fn name(&self) -> Option<&str> {
        let nested = self.function.as_ref().or(self.custom.as_ref()).map(|named| &*named.name);
        nested.or(self.name.as_deref())
    }
}

impl ToolChoice {
    fn is_none(&self) -> bool {
        match self {
            Self::Word(kind) | Self::Object { kind } => kind == "none",
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    /// Reads content that is a text, a list of blocks, or null beside tool calls.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of content blocks")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text { text: Cow::Borrowed(text), tool_results: 0 })
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text { text: Cow::Owned(text.into()), tool_results: 0 })
    }

    fn visit_unit<E: de::Error>(self) -> Result<Text<'de>, E> {
        Ok(Text::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut blocks: A) -> Result<Text<'de>, A::Error> {
        let mut all = Text::default();
        while let Some(block) = blocks.next_element::<Block<'de>>()? {
            match &*block.kind {
                "tool_result" => all.tool_results += 1,
                _ if all.text.is_empty() => all.text = block.text,
                _ => {
                    let text = all.text.to_mut();
                    text.push('\n');
                    text.push_str(&block.text);
                }
            }
        }
        Ok(all)
    }
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow, default)]
    text: Cow<'a, str>,
    // Named so that a tool result's own blocks are skipped without being looked at.
    #[serde(default, rename = "content")]
    _content: IgnoredAny,
}

/// Decodes a body by its `Content-Encoding`. Errors: an unknown encoding; a damaged or too large body.
pub(super) fn decode(headers: &HeaderMap, body: Bytes) -> Result<Bytes, Refusal> {
    let Some(encoding) = headers.get(header::CONTENT_ENCODING) else { return Ok(body) };
    let decoded = match encoding.as_bytes() {
        b"identity" => return Ok(body),
        b"gzip" => read(flate2::read::MultiGzDecoder::new(&*body)),
        b"zstd" => zstd::stream::read::Decoder::new(&*body).and_then(read),
        _ => {
            return Err(Refusal::UnknownEncoding { had: format!("{encoding:?}") });
        }
    };
    let decoded = decoded
        .map_err(|error| Refusal::bad(format!("the body is not in its encoding {encoding:?}: {error}")))?;
    if decoded.len() > MAX_BODY { Err(Refusal::TooLarge) } else { Ok(decoded.into()) }
}

/// Reads at most one byte past the limit, which is enough to know.
fn read(decoder: impl Read) -> std::io::Result<Vec<u8>> {
    let mut decoded = Vec::new();
    decoder.take(MAX_BODY as u64 + 1).read_to_end(&mut decoded)?;
    Ok(decoded)
}
