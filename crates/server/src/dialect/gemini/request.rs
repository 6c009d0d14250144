//! Reading of `generateContent` requests. Names are in camel case or with underscores: the API takes both.

use std::borrow::Cow;

use super::MAX_OUTPUT_TOKENS;
use crate::dialect::{
    bound,
    json_spans::{Kind, Scanner, wrong_type},
    request::read_tier,
    request::{BadRequest, BodyReader, CapPlace, CapSpan, Request, Result, read_body, required},
};

pub(super) fn parse(body: &[u8]) -> Result<Request> {
    let request = Request { client_asked_usage: true, ..Request::new(MAX_OUTPUT_TOKENS) };
    let mut request = read_body(body, Parser { request, ..Parser::default() })?;
    let open = request.spans.open;
    request.spans.cap_place.get_or_insert(CapPlace {
        at: open..open,
        before: "\"generationConfig\":{\"maxOutputTokens\":",
        after: "},",
    });
    Ok(request)
}

#[derive(Default)]
struct Parser {
    request: Request,
    bytes: u64,
    contents: Option<()>,
}

impl BodyReader for Parser {
    fn member(&mut self, json: &mut Scanner<'_>, key: &str) -> Result<()> {
        match &*camel(key) {
            "contents" => {
                self.contents = Some(());
                match json.kind()? {
                    Kind::Array => {
                        self.bytes += json.array(|json, i| self.content(json, &format!("contents[{i}]")))?;
                    }
                    _ => self.content(json, "contents")?,
                }
            }
            "systemInstruction" if json.kind()? == Kind::Object => self.content(json, "systemInstruction")?,
            "generationConfig" => self.config(json)?,
            "tools" if json.kind()? == Kind::Array => {
                self.bytes += json.array(|json, i| self.tool(json, i))?;
            }
            // Cached content belongs to the account, not to this run.
            "cachedContent" => {
                if json.string_or_null("cachedContent")?.is_some_and(|name| !name.decode().is_empty()) {
                    return Err(BadRequest::NotMetered { what: "`cachedContent`" });
                }
            }
            "serviceTier" => {
                if let Some(tier) = json.string_or_null("serviceTier")? {
                    let tier = tier.decode();
                    match read_tier(&tier.to_ascii_lowercase()) {
                        Some(known) => self.request.tier = known,
                        None => self.request.note_unpriced(format!("serviceTier {tier}")),
                    }
                }
            }
            "labels" => json.skip().map(drop)?,
            _ => self.bytes += json.skip()?.raw,
        }
        Ok(())
    }

    fn finish(self, frame: u64) -> Result<Request> {
        let mut request = self.request;
        required("contents", self.contents)?;
        request.cap = request.spans.caps.iter().filter_map(|cap| cap.value).max();
        request.input_bound = (self.bytes + frame).saturating_add(request.beyond_bytes);
        Ok(request)
    }
}

impl Parser {
    fn config(&mut self, json: &mut Scanner<'_>) -> Result<()> {
        let start = json.position();
        if json.kind()? == Kind::Null {
            let at = json.skip()?.span;
            self.request.spans.cap_place = Some(CapPlace { at, before: "{\"maxOutputTokens\":", after: "}" });
            return Ok(());
        }
        json.expect("generationConfig", Kind::Object)?;
        let request = &mut self.request;
        let mut members = 0;
        let mut bytes = 0;
        json.object(|json, key| {
            members += 1;
            match &*camel(key) {
                MAX_OUTPUT_TOKENS => {
                    let start = json.position();
                    let value = json.u64_or_null("generationConfig.maxOutputTokens")?;
                    let at = start..json.here();
                    request.spans.caps.push(CapSpan { field: MAX_OUTPUT_TOKENS, value, at });
                }
                "candidateCount" => {
                    let count = json.u64_or_null("generationConfig.candidateCount")?;
                    request.choices = request.choices.max(count.unwrap_or(1));
                }
                "thinkingConfig" if json.kind()? == Kind::Object => {
                    json.object(|json, key| {
                        match (&*camel(key), json.kind()?) {
                            // -1 lets the model decide.
                            ("thinkingBudget", Kind::Number) => {
                                let budget: i64 = json.number()?.parse().unwrap_or(0);
                                request.thinking_budget = u64::try_from(budget).ok().filter(|n| *n > 0);
                                request.reasons |= budget != 0;
                            }
                            _ => json.skip().map(drop)?,
                        }
                        Ok(())
                    })?;
                }
                "responseModalities" if json.kind()? == Kind::Array => {
                    json.array(|json, _| {
                        let text = json.kind()? == Kind::String
                            && json.string()?.decode().eq_ignore_ascii_case("text");
                        if !text {
                            request.note_unpriced("responseModalities other than TEXT");
                        }
                        Ok(())
                    })?;
                }
                // A schema reaches the model.
                _ => bytes += json.skip()?.raw,
            }
            Ok(())
        })?;
        self.bytes += bytes;
        request.spans.cap_place = Some(CapPlace {
            at: start + 1..start + 1,
            before: "\"maxOutputTokens\":",
            after: if members == 0 { "" } else { "," },
        });
        Ok(())
    }

    /// Reads a tool. Functions are the caller's own; Google runs every other tool, and bills it by its use.
    fn tool(&mut self, json: &mut Scanner<'_>, index: usize) -> Result<()> {
        json.expect(&format!("tools[{index}]"), Kind::Object)?;
        self.bytes += json.object(|json, key| {
            let name = camel(key);
            let value = json.skip()?;
            self.bytes += value.raw;
            // `{"googleSearch":{}}` switches it on; null does not.
            if name != "functionDeclarations" && value.raw != "null".len() as u64 {
                self.request.note_unpriced(format!("tools[{index}] {name}"));
                self.request.references = true;
            }
            Ok(())
        })?;
        Ok(())
    }

    fn content(&mut self, json: &mut Scanner<'_>, field: &str) -> Result<()> {
        self.request.message_count += 1;
        match json.kind()? {
            Kind::Object => {}
            // A bare text is not part of the API; it counts as its bytes.
            Kind::String => {
                return json.skip().map(|value| self.bytes += value.decoded);
            }
            had => return Err(wrong_type(field, "an object", had.name())),
        }
        self.bytes += json.object(|json, key| {
            match (key, json.kind()?) {
                ("parts", Kind::Array) => self.bytes += json.array(|json, _| self.part(json))?,
                ("parts", Kind::Object) => self.part(json)?,
                _ => self.bytes += json.skip()?.decoded,
            }
            Ok(())
        })?;
        Ok(())
    }

    fn part(&mut self, json: &mut Scanner<'_>) -> Result<()> {
        if json.kind()? != Kind::Object {
            return json.skip().map(|value| self.bytes += value.decoded);
        }
        self.bytes += json.object(|json, key| {
            match (&*camel(key), json.kind()?) {
                ("inlineData", Kind::Object) => self.data(json, true),
                ("fileData", Kind::Object) => self.data(json, false),
                // The model reads them as JSON; a result may hold media of its own.
                ("functionCall" | "functionResponse", _) => json.skip().map(|value| self.bytes += value.raw),
                _ => json.skip().map(|value| self.bytes += value.decoded),
            }
        })?;
        Ok(())
    }

    /// Reads inline data or a file. Images cost by their size in pixels; audio and video have price columns of
    /// their own; for anything else only the model's limit is known.
    fn data(&mut self, json: &mut Scanner<'_>, is_inline: bool) -> Result<()> {
        let mut kind = String::new();
        self.bytes += json.object(|json, key| {
            match (&*camel(key), json.kind()?) {
                ("mimeType", Kind::String) => {
                    kind = json.string()?.decode().to_ascii_lowercase();
                    self.bytes += kind.len() as u64 + 2;
                }
                ("data", _) => json.skip().map(drop)?,
                _ => self.bytes += json.skip()?.decoded,
            }
            Ok(())
        })?;
        match kind.split('/').next() {
            Some("image") if is_inline => self.request.beyond_bytes += bound::GEMINI_IMAGE,
            Some(media @ ("audio" | "video")) => {
                self.request.references = true;
                self.request.note_unpriced(format!("{media} input"));
            }
            _ => self.request.references = true,
        }
        Ok(())
    }
}

/// Converts a key such as `max_output_tokens` to `maxOutputTokens`.
fn camel(key: &str) -> Cow<'_, str> {
    if !key.contains('_') {
        return Cow::Borrowed(key);
    }
    let mut up = false;
    let mut out = String::with_capacity(key.len());
    for c in key.chars() {
        if c == '_' {
            up = true;
        } else if std::mem::take(&mut up) {
            out.push(c.to_ascii_uppercase());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}
