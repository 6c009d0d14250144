//! Reading of requests to `/v1/messages`.

use outlast_core::words::ServiceTier;

use super::MAX_TOKENS;
use crate::dialect::{
    bound,
    json_spans::{Kind, Scanner, wrong_type},
    request::{BodyReader, Request, Result, required},
};

/// State of the one pass over a request body.
#[derive(Default)]
pub(super) struct Parser {
    request: Request,
    model: Option<String>,
    messages: Option<()>,
    /// Number of bytes of the request that the model reads each time it runs.
    bytes: u64,
    tools: u64,
    /// Number of uses of server tools that the request allows, and the largest number of tokens that one use
    /// adds.
    uses: u64,
    result: u64,
}

impl Parser {
    pub fn new() -> Self {
        let request = Request { client_asked_usage: true, ..Request::new(MAX_TOKENS) };
        Self { request, ..Self::default() }
    }
}

impl BodyReader for Parser {
    fn member(&mut self, json: &mut Scanner<'_>, key: &str) -> Result<()> {
        let request = &mut self.request;
        match key {
            "model" => self.model = Some(json.text("model")?),
            MAX_TOKENS => {
                json.expect(MAX_TOKENS, Kind::Number)?;
                request.cap = request.read_cap(json, MAX_TOKENS)?;
            }
            "messages" => {
                json.expect("messages", Kind::Array)?;
                self.messages = Some(());
                self.bytes += json.array(|json, i| self.message(json, i))?;
            }
            "system" => self.content(json, "system")?,
            "stream" => request.stream = json.bool_or_null("stream")?,
            "thinking" => self.thinking(json)?,
            "tools" => self.bytes += json.array_or_null("tools", |json, i| self.tool(json, i))?,
            "cache_control" => self.cache_control(json)?,
            "service_tier" => {
                if let Some(tier) = json.string_or_null("service_tier")? {
                    match &*tier.decode() {
                        "auto" => {}
                        "standard_only" => request.tier = Some(ServiceTier::Standard),
                        other => request.note_unpriced(format!("service_tier {other}")),
                    }
                }
            }
            // Priced by a factor of their own.
            "speed" => self.unpriced_unless(json, "speed", "standard")?,
            "inference_geo" => self.unpriced_unless(json, "inference_geo", "global")?,
            // Another model answers, at its price.
            "fallbacks" => self.unpriced_unless(json, "fallbacks", "")?,
            "mcp_servers" => {
                let value = json.skip()?;
                if value.raw > "null".len() as u64 {
                    request.note_unpriced("mcp_servers");
                    request.references = true;
                    self.uses = self.uses.saturating_add(bound::SERVER_LOOP_TURNS);
                }
            }
            "thread" => request.references |= json.skip()?.raw > "null".len() as u64,
            "context_management" => self.context_management(json)?,
            "metadata" => json.skip().map(drop)?,
            _ => self.bytes += json.skip()?.raw,
        }
        Ok(())
    }

    fn finish(self, frame: u64) -> Result<Request> {
        let mut request = self.request;
        request.model = required("model", self.model)?;
        required("messages", self.messages)?;
        required(MAX_TOKENS, request.cap)?;
        if self.tools > 0 {
            request.beyond_bytes += bound::ANTHROPIC_TOOL_PREAMBLE;
        }
        request.turns = self.uses.saturating_add(1);
        let once = (self.bytes + frame).saturating_add(request.beyond_bytes);
        request.input_bound = bound::over_turns(once, self.uses, self.result);
        Ok(request)
    }
}

impl Parser {
    fn unpriced_unless(&mut self, json: &mut Scanner<'_>, field: &str, usual: &str) -> Result<()> {
        match json.kind()? {
            Kind::Null => drop(json.literal()?),
            Kind::String => {
                let value = json.string()?.decode();
                if value != usual {
                    self.request.note_unpriced(format!("{field} {value}"));
                }
            }
            _ => {
                json.skip()?;
                self.request.note_unpriced(field);
            }
        }
        Ok(())
    }

    fn thinking(&mut self, json: &mut Scanner<'_>) -> Result<()> {
        let request = &mut self.request;
        json.object_or_null("thinking", |json, key| {
            match key {
                "type" => {
                    let kind = json.string_or_null("thinking.type")?;
                    request.reasons = kind.is_some_and(|kind| kind.decode() != "disabled");
                }
                "budget_tokens" => request.thinking_budget = json.u64_or_null("thinking.budget_tokens")?,
                _ => json.skip().map(drop)?,
            }
            Ok(())
        })
    }

    /// Reads `{"type":"ephemeral","ttl":"5m" | "1h"}`; without a ttl it is 5 minutes.
    fn cache_control(&mut self, json: &mut Scanner<'_>) -> Result<()> {
        let is_object = json.kind()? == Kind::Object;
        let hour = json.text_member("ttl")?.as_deref() == Some("1h");
        self.request.wants_cache_1h |= is_object && hour;
        self.request.wants_cache_5m |= is_object && !hour;
        Ok(())
    }

    /// Reads `context_management`. A compaction is one more run over the input, and its summary is not capped
    /// by `max_tokens`.
    fn context_management(&mut self, json: &mut Scanner<'_>) -> Result<()> {
        if json.kind()? != Kind::Object {
            return json.skip().map(drop);
        }
        let mut compactions = 0;
        json.object(|json, key| {
            if key != "edits" {
                return json.skip().map(drop);
            }
            json.array_or_skip(|json, _| {
                let kind = json.text_member("type")?;
                compactions += u64::from(kind.is_some_and(|kind| kind.starts_with("compact_")));
                Ok(())
            })?;
            Ok(())
        })?;
        self.uses = self.uses.saturating_add(compactions);
        self.request.extra_output += compactions * bound::COMPACTION_OUTPUT;
        Ok(())
    }

    fn tool(&mut self, json: &mut Scanner<'_>, index: usize) -> Result<()> {
        json.expect(&format!("tools[{index}]"), Kind::Object)?;
        let (mut kind, mut max_uses, mut max_content) = (None, None, None);
        let mut bytes = 0;
        bytes += json.object(|json, key| {
            match (key, json.kind()?) {
                ("type", Kind::String) => kind = Some(json.string()?.decode().into_owned()),
                ("max_uses", _) => max_uses = json.u64_or_null(&format!("tools[{index}].max_uses"))?,
                ("max_content_tokens", _) => {
                    max_content = json.u64_or_null(&format!("tools[{index}].max_content_tokens"))?;
                }
                ("cache_control", _) => self.cache_control(json)?,
                _ => bytes += json.skip()?.raw,
            }
            Ok(())
        })?;
        self.bytes += bytes;
        self.tools += 1;
        self.server_tool(index, kind.as_deref().unwrap_or("custom"), max_uses, max_content);
        Ok(())
    }

    /// Adds the cost of a tool beyond its definition.
    ///
    /// A server tool without `max_uses` is assumed to run as often as the provider's own loop allows. A search
    /// is billed by the piece and can run several times in one turn: without `max_uses` it has no bound.
    fn server_tool(&mut self, index: usize, kind: &str, max_uses: Option<u64>, max_content: Option<u64>) {
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| kind.starts_with(prefix));
        let uses = max_uses.unwrap_or(bound::SERVER_LOOP_TURNS);
        if kind == "custom" {
            return;
        }
        if starts(&["browser_toolset_", "computer_toolset_"]) {
            self.request.beyond_bytes += bound::ANTHROPIC_DEFINED_TOOLSET;
            return;
        }
        self.request.beyond_bytes += bound::ANTHROPIC_DEFINED_TOOL;
        if starts(&["bash_", "text_editor_", "computer_", "memory_"]) {
            return;
        }
        self.uses = self.uses.saturating_add(uses);
        if starts(&["web_search_"]) {
            self.result = self.result.max(bound::WEB_SEARCH_RESULT);
            self.request.web_searches = self.request.web_searches.saturating_add(uses);
            if max_uses.is_none() {
                self.request.note_unpriced(format!("tools[{index}] {kind} without max_uses"));
            }
        } else if starts(&["web_fetch_"]) {
            self.result = self.result.max(max_content.unwrap_or(bound::WEB_FETCH_RESULT));
        } else if !starts(&["tool_search_tool_"]) {
            // Code execution is billed by time, an advisor is another model; the prices of other tools are
            // unknown.
            self.request.note_unpriced(format!("tools[{index}] {kind}"));
            self.request.references = true;
        }
    }

    fn message(&mut self, json: &mut Scanner<'_>, index: usize) -> Result<()> {
        self.request.message_count += 1;
        json.expect(&format!("messages[{index}]"), Kind::Object)?;
        let frame = json.object(|json, key| {
            if key == "content" {
                return self.content(json, "content");
            }
            json.skip().map(|value| self.bytes += value.decoded)
        })?;
        self.bytes += frame;
        Ok(())
    }

    /// Reads text, blocks, or one block (the results of some server tools).
    fn content(&mut self, json: &mut Scanner<'_>, field: &str) -> Result<()> {
        match json.kind()? {
            Kind::Object => self.block(json),
            Kind::Array => {
                self.bytes += json.array(|json, i| match json.kind()? {
                    Kind::Object => self.block(json),
                    had => Err(wrong_type(&format!("{field}[{i}]"), "an object", had.name())),
                })?;
                Ok(())
            }
            Kind::String | Kind::Null => json.skip().map(|value| self.bytes += value.decoded),
            had => Err(wrong_type(field, "a string or an array", had.name())),
        }
    }

    /// Reads a content block at any depth. `type` may come after the data that it explains.
    fn block(&mut self, json: &mut Scanner<'_>) -> Result<()> {
        let mut kind = None;
        let mut source: Option<Source> = None;
        let frame = json.object(|json, key| {
            match (key, json.kind()?) {
                ("type", Kind::String) => kind = Some(json.counted_string(&mut self.bytes)?),
                ("cache_control", _) => self.cache_control(json)?,
                ("content", Kind::Array | Kind::Object | Kind::String) => self.content(json, "content")?,
                ("source", Kind::Object) => source = Some(self.source(json)?),
                // The model reads tool inputs as JSON.
                ("input", _) => self.bytes += json.skip()?.raw,
                _ => self.bytes += json.skip()?.decoded,
            }
            Ok(())
        })?;
        self.bytes += frame;
        let outside =
            matches!(source.as_ref().and_then(|s| s.kind.as_deref()), Some("base64" | "url" | "file"));
        match (kind.as_deref(), source) {
            // An image costs by its size in pixels, wherever its bytes are.
            (Some("image"), Some(_)) if outside => self.request.beyond_bytes += bound::ANTHROPIC_IMAGE,
            (kind, source) => {
                self.bytes += source.map_or(0, |source| source.bytes);
                // PDFs hold more tokens than bytes.
                self.request.references |= outside || kind == Some("container_upload");
            }
        }
        Ok(())
    }

    fn source(&mut self, json: &mut Scanner<'_>) -> Result<Source> {
        let (mut kind, mut bytes) = (None, 0);
        bytes += json.object(|json, key| {
            match (key, json.kind()?) {
                ("type", Kind::String) => kind = Some(json.string()?.decode().into_owned()),
                ("content", Kind::Array | Kind::String) => self.content(json, "source.content")?,
                _ => bytes += json.skip()?.decoded,
            }
            Ok(())
        })?;
        Ok(Source { kind, bytes })
    }
}

/// A block's source; `kind` is `base64`, `url`, `file`, `text` or `content`.
struct Source {
    kind: Option<String>,
    /// Bytes of the source, without its nested blocks: those are counted already.
    bytes: u64,
}
