//! Reading of requests to `/v1/responses`.

use super::MAX_OUTPUT_TOKENS;
use crate::dialect::{
    bound::{self, openai_images},
    json_spans::{Kind, Scanner, wrong_type},
    openai_chat::reasons_by_name,
    request::{BadRequest, BodyReader, Request, Result, required},
};

/// State of the one pass over a request body.
#[derive(Default)]
pub(super) struct Parser {
    request: Request,
    model: Option<String>,
    /// Present if the request has something to answer: an input, an earlier answer, a template.
    input: Option<()>,
    /// Number of bytes of the request that the model reads each time it runs, images excluded.
    bytes: u64,
    images: u64,
    images_low: u64,
    compactions: u64,
    max_tool_calls: Option<u64>,
    /// First tool that the provider runs itself; `search` is the first such tool that searches.
    server_tool: Option<String>,
    search: Option<String>,
}

impl Parser {
    pub fn new() -> Self {
        // The terminal event always carries the usage. Current models write their cache unasked, and bill it.
        let request =
            Request { client_asked_usage: true, wants_cache_5m: true, ..Request::new(MAX_OUTPUT_TOKENS) };
        Self { request, ..Self::default() }
    }
}

impl BodyReader for Parser {
    fn member(&mut self, json: &mut Scanner<'_>, key: &str) -> Result<()> {
        let request = &mut self.request;
        match key {
            "model" => self.model = Some(json.text("model")?),
            "input" => {
                self.input = Some(());
                self.input(json, "input")?;
            }
            "instructions" => self.input(json, "instructions")?,
            "stream" => request.stream = json.bool_or_null("stream")?,
            // A background response goes on without a connection, and the client polls for it.
            "background" => {
                if json.bool_or_null("background")? {
                    return Err(BadRequest::NotMetered { what: "`background`" });
                }
            }
            // Every response adds to a conversation, which can belong to another run.
            "conversation" => {
                if json.skip()?.raw > "null".len() as u64 {
                    return Err(BadRequest::NotMetered { what: "`conversation`" });
                }
            }
            "previous_response_id" => {
                if let Some(id) = json.string_or_null("previous_response_id")? {
                    self.input = Some(());
                    request.references = true;
                    request.names.push(id.decode().into_owned());
                }
            }
            // A prompt is a template at the provider, which can bring in tools and another model.
            "prompt" => {
                if json.kind()? != Kind::Null {
                    self.input = Some(());
                    request.note_unpriced("prompt");
                    request.references = true;
                }
                self.bytes += json.skip()?.decoded;
            }
            MAX_OUTPUT_TOKENS => request.cap = request.read_cap(json, MAX_OUTPUT_TOKENS)?,
            "max_tool_calls" => self.max_tool_calls = json.u64_or_null("max_tool_calls")?,
            "reasoning" => self.reasoning(json)?,
            "service_tier" => request.read_service_tier(json)?,
            "tools" => {
                self.bytes +=
                    json.array_or_null("tools", |json, i| self.tool(json, &format!("tools[{i}]")))?;
            }
            // A compaction is one more run over the input, and the cap does not cover its summary.
            "context_management" => {
                json.array_or_skip(|json, _| {
                    self.compactions += u64::from(json.kind()? == Kind::Object);
                    json.skip().map(drop)
                })?;
            }
            "metadata" | "client_metadata" | "user" | "prompt_cache_key" | "safety_identifier" => {
                json.skip().map(drop)?;
            }
            _ => self.bytes += json.skip()?.raw,
        }
        Ok(())
    }

    fn finish(self, frame: u64) -> Result<Request> {
        let mut request = self.request;
        request.model = required("model", self.model)?;
        required("input", self.input)?;
        let model = &request.model;
        request.reasons |= reasons_by_name(model);
        request.beyond_bytes = openai_images(model, self.images, self.images_low);
        // `max_tool_calls` is one limit for all tools that the provider runs.
        let tool_calls = match &self.server_tool {
            Some(_) => self.max_tool_calls.unwrap_or(bound::SERVER_LOOP_TURNS),
            None => 0,
        };
        let result = match self.search {
            Some(_) => bound::WEB_SEARCH_RESULT,
            None => 0,
        };
        if let Some(search) = self.search {
            request.web_searches = tool_calls;
            if self.max_tool_calls.is_none() {
                request.note_unpriced(format!("{search} without max_tool_calls"));
            }
        }
        let uses = tool_calls.saturating_add(self.compactions);
        request.turns = uses.saturating_add(1);
        request.extra_output = self.compactions.saturating_mul(bound::COMPACTION_OUTPUT);
        let once = (self.bytes + frame).saturating_add(request.beyond_bytes);
        request.input_bound = bound::over_turns(once, uses, result);
        Ok(request)
    }
}

impl Parser {
    fn reasoning(&mut self, json: &mut Scanner<'_>) -> Result<()> {
        json.object_or_null("reasoning", |json, key| {
            if key == "effort" {
                let effort = json.string_or_null("reasoning.effort")?;
                self.request.reasons |= effort.is_some_and(|effort| effort.decode() != "none");
                return Ok(());
            }
            json.skip().map(drop)
        })
    }

    /// Reads a tool, or a `namespace` of tools.
    fn tool(&mut self, json: &mut Scanner<'_>, field: &str) -> Result<()> {
        json.expect(field, Kind::Object)?;
        let mut kind = None;
        let mut hosted = false;
        self.bytes += json.object(|json, key| {
            match (key, json.kind()?) {
                ("type", Kind::String) => kind = Some(json.counted_string(&mut self.bytes)?),
                ("tools", Kind::Array) => {
                    self.bytes += json.array(|json, i| self.tool(json, &format!("{field}.tools[{i}]")))?;
                }
                // The place where a shell runs: `{"type":"local"}` is the client's own machine.
                ("environment", Kind::Object) => {
                    hosted |= json.text_member("type")?.is_some_and(|kind| kind != "local");
                }
                _ => self.bytes += json.skip()?.raw,
            }
            Ok(())
        })?;
        self.runs_at_provider(field, kind.as_deref().unwrap_or_default(), hosted);
        Ok(())
    }

    /// Records the cost of a tool beyond its definition.
    ///
    /// A search is billed by the piece and has no bound without `max_tool_calls`. Other tools that the provider
    /// runs are billed in ways that the price table does not have.
    fn runs_at_provider(&mut self, field: &str, kind: &str, hosted: bool) {
        let named = || format!("{field} {kind}");
        match kind {
            "function" | "custom" | "namespace" => {}
            // Defined by the provider, run by the client.
            "local_shell" | "apply_patch" | "computer" | "computer_use_preview" => self.defined_tool(),
            "shell" if !hosted => self.defined_tool(),
            // `tool_search` looks up tools of this request, and costs only their tokens.
            "tool_search" => {
                self.server_tool.get_or_insert_with(named);
            }
            _ if kind.starts_with("web_search") => {
                self.server_tool.get_or_insert_with(named);
                self.search.get_or_insert_with(named);
            }
            // Files, containers, images, other servers; the prices of other tools are unknown.
            _ => {
                self.server_tool.get_or_insert_with(named);
                self.request.note_unpriced(named());
                self.request.references = true;
            }
        }
    }

    fn defined_tool(&mut self) {
        self.request.beyond_bytes += bound::OPENAI_DEFINED_TOOL;
        self.bytes += bound::OPENAI_DEFINED_TOOL;
    }

    /// Reads the value of `input`: a text, or a list of items.
    fn input(&mut self, json: &mut Scanner<'_>, field: &str) -> Result<()> {
        match json.kind()? {
            Kind::Array => {
                self.bytes += json.array(|json, i| {
                    self.request.message_count += 1;
                    match json.kind()? {
                        Kind::Object => self.item(json),
                        had => Err(wrong_type(&format!("{field}[{i}]"), "an object", had.name())),
                    }
                })?;
                Ok(())
            }
            Kind::String | Kind::Null => {
                self.request.message_count += u64::from(field == "input");
                json.skip().map(|value| self.bytes += value.decoded)
            }
            had => Err(wrong_type(field, "a string or an array", had.name())),
        }
    }

    /// Reads an item, or a part of one, at any depth. `type` may come after the data that it explains.
    fn item(&mut self, json: &mut Scanner<'_>) -> Result<()> {
        let (mut kind, mut id, mut low) = (None, None, false);
        let (mut picture, mut file) = (None, None);
        self.bytes += json.object(|json, key| {
            match (key, json.kind()?) {
                ("type", Kind::String) => kind = Some(json.counted_string(&mut self.bytes)?),
                ("id", Kind::String) => id = Some(json.counted_string(&mut self.bytes)?),
                ("detail", Kind::String) => low = json.string()?.decode() == "low",
                ("image_url", Kind::String) => picture = Some(json.skip()?.decoded),
                ("file_id" | "file_url" | "file_data", Kind::String) => {
                    file = Some(file.unwrap_or(0) + json.skip()?.decoded);
                }
                (_, Kind::Object) => self.item(json)?,
                (_, Kind::Array) => {
                    self.bytes += json.array(|json, _| match json.kind()? {
                        Kind::Object => self.item(json),
                        _ => json.skip().map(|value| self.bytes += value.decoded),
                    })?;
                }
                _ => self.bytes += json.skip()?.decoded,
            }
            Ok(())
        })?;
        match kind.as_deref() {
            // An image costs by its size in pixels, wherever its bytes are.
            Some("input_image" | "computer_screenshot") if picture.is_some() || file.is_some() => {
                let images = if low { &mut self.images_low } else { &mut self.images };
                *images += 1;
            }
            kind => {
                // A file holds more tokens than its id, or an inline PDF's bytes.
                self.bytes += picture.unwrap_or(0) + file.unwrap_or(0);
                self.request.references |= file.is_some();
                match kind {
                    Some("item_reference") => {
                        self.request.references = true;
                        self.request.names.extend(id);
                    }
                    // An earlier image of the provider's own; when it is kept there, only its id is given.
                    Some("image_generation_call") => self.images += 1,
                    Some("input_audio") => self.request.note_unpriced("input_audio"),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
