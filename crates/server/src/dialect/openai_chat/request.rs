//! Reading of chat completion requests.

use super::{MAX_COMPLETION_TOKENS, MAX_TOKENS};
use crate::dialect::{
    bound::openai_images,
    json_spans::{Kind, Scanner, wrong_type},
    request::{BodyReader, Request, Result, UsageOption, required},
};

/// Members that bring in charges or models which the table of token prices does not cover.
const UNPRICED: [&str; 3] = ["search_parameters", "plugins", "models"];

/// Members of `web_search_options` that are billed as any search is.
const SEARCH_OPTIONS: [&str; 2] = ["search_context_size", "user_location"];

/// State of the one pass over a request body.
#[derive(Default)]
pub(super) struct Parser {
    request: Request,
    model: Option<String>,
    messages: Option<()>,
    images: u64,
    images_low: u64,
    /// Number of bytes of the request that the model reads, images excluded.
    bytes: u64,
    usage_option: UsageOption,
}

impl Parser {
    pub fn new() -> Self {
        // Current models write their cache unasked, and bill it.
        let request = Request { wants_cache_5m: true, ..Request::new(MAX_COMPLETION_TOKENS) };
        Self { request, usage_option: UsageOption::InsertObject, ..Self::default() }
    }
}

impl BodyReader for Parser {
    fn member(&mut self, json: &mut Scanner<'_>, key: &str) -> Result<()> {
        let request = &mut self.request;
        match key {
            "model" => self.model = Some(json.text("model")?),
            "messages" => {
                json.expect("messages", Kind::Array)?;
                self.messages = Some(());
                self.bytes += json.array(|json, i| self.message(json, i))?;
            }
            "stream" => request.stream = json.bool_or_null("stream")?,
            "stream_options" => self.stream_options(json)?,
            "n" => request.choices = json.u64_or_null("n")?.unwrap_or(1).max(1),
            MAX_TOKENS => request.read_cap(json, MAX_TOKENS).map(drop)?,
            MAX_COMPLETION_TOKENS => request.read_cap(json, MAX_COMPLETION_TOKENS).map(drop)?,
            "reasoning_effort" => {
                let effort = json.string_or_null("reasoning_effort")?;
                request.reasons |= effort.is_some_and(|effort| effort.decode() != "none");
            }
            "service_tier" => request.read_service_tier(json)?,
            // A rejected prediction is billed as output, whatever the cap.
            "prediction" => request.extra_output = json.skip()?.decoded,
            "modalities" => {
                json.array_or_skip(|json, _| {
                    if json.kind()? != Kind::String || json.string()?.decode() != "text" {
                        request.note_unpriced("modalities other than text");
                    }
                    Ok(())
                })?;
            }
            "tools" => self.bytes += json.array_or_skip(|json, i| self.tool(json, i))?,
            "web_search_options" if json.kind()? == Kind::Object => {
                request.search_options = true;
                self.bytes += json.object(|json, key| {
                    if !SEARCH_OPTIONS.contains(&key) {
                        request.note_unpriced(format!("web_search_options.{key}"));
                    }
                    json.skip().map(|value| self.bytes += value.raw)
                })?;
            }
            _ if UNPRICED.contains(&key) => {
                if json.kind()? != Kind::Null {
                    request.note_unpriced(key);
                    request.references |= key != "models";
                }
                json.skip()?;
            }
            "metadata" | "user" | "prompt_cache_key" | "safety_identifier" => json.skip().map(drop)?,
            _ => self.bytes += json.skip()?.raw,
        }
        Ok(())
    }

    fn finish(self, frame: u64) -> Result<Request> {
        let mut request = self.request;
        request.model = required("model", self.model)?;
        required("messages", self.messages)?;
        let model = &request.model;
        request.beyond_bytes = openai_images(model, self.images, self.images_low);
        request.input_bound = (self.bytes + frame).saturating_add(request.beyond_bytes);
        request.reasons |= reasons_by_name(model);
        let caps = &request.spans.caps;
        // Both at once is an error at OpenAI; elsewhere either may win, so the higher one is the bound.
        request.cap = caps.iter().filter_map(|cap| cap.value).max();
        let by_completion = caps.iter().any(|cap| cap.field == MAX_COMPLETION_TOKENS && cap.value.is_some());
        if request.cap.is_some() && !by_completion {
            request.cap_field = MAX_TOKENS;
        }
        if request.stream && !request.client_asked_usage {
            request.spans.usage_option = self.usage_option;
        }
        Ok(request)
    }
}

impl Parser {
    fn stream_options(&mut self, json: &mut Scanner<'_>) -> Result<()> {
        let start = json.position();
        if json.kind()? == Kind::Null {
            self.usage_option = UsageOption::ReplaceObject(json.skip()?.span);
            return Ok(());
        }
        json.expect("stream_options", Kind::Object)?;
        let mut members = 0;
        let mut include_usage = None;
        json.object(|json, key| {
            members += 1;
            if key != "include_usage" {
                return json.skip().map(drop);
            }
            let start = json.position();
            self.request.client_asked_usage = json.bool_or_null("stream_options.include_usage")?;
            include_usage = Some(start..json.here());
            Ok(())
        })?;
        self.usage_option = match include_usage {
            Some(at) => UsageOption::ReplaceMember(at),
            None => UsageOption::InsertMember { open: start + 1, empty: members == 0 },
        };
        Ok(())
    }

    fn tool(&mut self, json: &mut Scanner<'_>, index: usize) -> Result<()> {
        json.expect(&format!("tools[{index}]"), Kind::Object)?;
        self.bytes += json.object(|json, key| {
            if key == "type" && json.kind()? == Kind::String {
                let kind = json.counted_string(&mut self.bytes)?;
                if kind != "function" && kind != "custom" {
                    self.request.note_unpriced(format!("tools[{index}] {kind}"));
                    self.request.references = true;
                }
                return Ok(());
            }
            json.skip().map(|value| self.bytes += value.raw)
        })?;
        Ok(())
    }

    fn message(&mut self, json: &mut Scanner<'_>, index: usize) -> Result<()> {
        self.request.message_count += 1;
        json.expect(&format!("messages[{index}]"), Kind::Object)?;
        let mut inner = 0;
        let frame = json.object(|json, key| {
            match (key, json.kind()?) {
                ("content", Kind::Array) => {
                    inner += json.array(|json, part| match json.kind()? {
                        Kind::Object => self.part(json),
                        Kind::String => json.skip().map(|value| self.bytes += value.decoded),
                        had => {
                            let field = format!("messages[{index}].content[{part}]");
                            Err(wrong_type(&field, "an object", had.name()))
                        }
                    })?;
                }
                ("audio", Kind::Object) => {
                    // An earlier spoken answer, referenced by its id.
                    self.request.references = true;
                    self.request.note_unpriced("audio");
                    inner += json.skip()?.decoded;
                }
                _ => inner += json.skip()?.decoded,
            }
            Ok(())
        })?;
        self.bytes += frame + inner;
        Ok(())
    }

    /// Reads one part of a message's content. `type` may come after the data that it explains.
    fn part(&mut self, json: &mut Scanner<'_>) -> Result<()> {
        let mut kind = None;
        let mut image: Option<Image> = None;
        let mut bytes = 0;
        let frame = json.object(|json, key| {
            match (key, json.kind()?) {
                ("type", Kind::String) => kind = Some(json.counted_string(&mut bytes)?),
                ("image_url", _) => image = Some(Image::read(json)?),
                _ => bytes += json.skip()?.decoded,
            }
            Ok(())
        })?;
        bytes += frame;
        match (kind.as_deref(), image) {
            (Some("image_url"), Some(image)) if image.low => self.images_low += 1,
            (Some("image_url"), Some(_)) => self.images += 1,
            (kind, image) => {
                bytes += image.map_or(0, |image| image.bytes);
                match kind {
                    Some("text" | "refusal" | "thinking") => {}
                    Some("input_audio") => self.request.note_unpriced("input_audio"),
                    // A file (inline PDFs hold more tokens than bytes), or an unknown part that may refer to
                    // anything.
                    _ => self.request.references = true,
                }
            }
        }
        self.bytes += bytes;
        Ok(())
    }
}

/// An `image_url`: an object, or with some servers a bare URL.
struct Image {
    low: bool,
    bytes: u64,
}

impl Image {
    fn read(json: &mut Scanner<'_>) -> Result<Self> {
        if json.kind()? != Kind::Object {
            return Ok(Self { low: false, bytes: json.skip()?.decoded });
        }
        let (mut low, mut bytes) = (false, 0);
        bytes += json.object(|json, key| {
            if key == "detail" && json.kind()? == Kind::String {
                low = json.string()?.decode() == "low";
            } else {
                bytes += json.skip()?.decoded;
            }
            Ok(())
        })?;
        Ok(Self { low, bytes })
    }
}

/// Returns whether the model's name belongs to a family that reasons even if the request does not ask for it.
pub(in crate::dialect) fn reasons_by_name(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    ["o1", "o3", "o4", "gpt-5", "gpt-oss"].iter().any(|family| name.starts_with(family))
}
