//! Facts of a request that decide its cost, in one shape for every dialect; and the edits of its body, spliced in at byte
//! positions. All other bytes stay as the client wrote them.

use std::{borrow::Cow, ops::Range};

use outlast_core::words::ServiceTier;

use super::json_spans::{Kind, Scanner};

pub(super) type Result<T> = std::result::Result<T, BadRequest>;

/// Facts of one request that admission, pricing and editing need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub model: String,
    pub stream: bool,
    /// Whether a streamed answer comes as one JSON array instead of server-sent events.
    pub array_stream: bool,
    /// Whether the client itself asked for usage in the stream, or the dialect always sends it.
    pub client_asked_usage: bool,
    /// Number of answers that the request asks for (`n`), at least 1. Each may be as long as the cap.
    pub choices: u64,
    /// Output cap of the client, in tokens; `None`: the model's own maximum.
    pub cap: Option<u64>,
    /// Name of the field that carries the cap, or would carry an inserted one.
    pub cap_field: &'static str,
    /// Thinking tokens fixed by the request, which count as output below the cap; `None`: none are fixed.
    pub thinking_budget: Option<u64>,
    /// Whether the request turns reasoning on, or the model's name says that it reasons anyway.
    pub reasons: bool,
    /// Service tier that the request asks for; `None` when absent or `auto`: the provider decides.
    pub tier: Option<ServiceTier>,
    /// Whether input can be billed as a cache write of the short kind (for OpenAI the only kind).
    pub wants_cache_5m: bool,
    pub wants_cache_1h: bool,
    /// Largest number of web searches that the request can bill.
    pub web_searches: u64,
    /// Largest number of model runs within this one request: 1 plus the uses of server tools. If it is more than 1, the
    /// bound "billed input of the base + bytes of the middle" does not hold; only `input_bound` does.
    pub turns: u64,
    /// Output tokens that can be billed beyond `cap` × `choices`: rejected predictions, compaction.
    pub extra_output: u64,
    /// Name of the request's first feature that costs money beyond tokens times price; `None` if it has none. Under a
    /// limit in USD such a request is refused as `price_unknown`; else its tokens are charged, and the fee is not.
    pub unpriced: Option<String>,
    /// Whether the request sets options of the web search that some models make for every request. Any other model
    /// searches because of these options, at a fee that nobody knows.
    pub search_options: bool,
    /// Upper bound of the billed input, in tokens; see `bound`. Does not hold alone when `references` is set.
    pub input_bound: u64,
    /// Part of `input_bound` for what is billed beyond its bytes, in tokens: images, tools that the provider defines.
    /// The bound "billed input of the base + bytes of the middle" holds only with this added, because a middle of few
    /// bytes can hold such things.
    pub beyond_bytes: u64,
    /// Whether the body refers to content that it does not hold (a file id, a PDF, a URL). The model's
    /// `max_input_tokens` is then the bound.
    pub references: bool,
    /// Ids of stored answers (or their parts) at the upstream from which this request continues. They must be in the
    /// run's own journal.
    pub names: Vec<String>,
    pub message_count: u64,
    pub(super) spans: Spans,
}

impl Request {
    pub(super) fn new(cap_field: &'static str) -> Self {
        Self { choices: 1, turns: 1, cap_field, ..Self::default() }
    }

    /// Returns the body as it goes upstream: `body` unchanged unless something has to change.
    ///
    /// `body` must be the one that the request was parsed from. `cap`: tokens to which the output is capped; a lower cap
    /// of the client's stays, and `None` changes no cap. With `want_usage` a stream is asked to report its usage, if
    /// the dialect has an option for it and the client did not set it.
    pub fn edit<'b>(&self, body: &'b [u8], cap: Option<u64>, want_usage: bool) -> Cow<'b, [u8]> {
        let spans = &self.spans;
        debug_assert_eq!(body.len(), spans.body_len, "edited another body than the one that was parsed");
        let mut splices = Vec::new();
        if let Some(cap) = cap {
            cap_splices(self, cap, &mut splices);
        }
        if want_usage && !self.client_asked_usage {
            splices.extend(usage_splice(spans));
        }
        splice(body, splices)
    }

    /// Reads an output cap, and returns it; `None` for null.
    pub(super) fn read_cap(&mut self, json: &mut Scanner<'_>, field: &'static str) -> Result<Option<u64>> {
        let start = json.position();
        let value = json.u64_or_null(field)?;
        self.spans.caps.push(CapSpan { field, value, at: start..json.here() });
        Ok(value)
    }

    /// Reads OpenAI's member `service_tier`.
    pub(super) fn read_service_tier(&mut self, json: &mut Scanner<'_>) -> Result<()> {
        let Some(tier) = json.string_or_null("service_tier")? else { return Ok(()) };
        let tier = tier.decode();
        match read_tier(&tier) {
            Some(known) => self.tier = known,
            None => self.note_unpriced(format!("service_tier {tier}")),
        }
        Ok(())
    }

    /// Records a feature without a price. Only the first one is kept, and errors name it.
    pub(super) fn note_unpriced(&mut self, what: impl Into<String>) {
        self.unpriced.get_or_insert_with(|| what.into());
    }
}

/// Byte positions in the body that `edit` may have to change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spans {
    pub body_len: usize,
    /// Byte position just behind the `{` of the body.
    pub open: usize,
    /// Each cap field that is present: its value (`None`: null) and its byte range.
    pub caps: Vec<CapSpan>,
    pub usage_option: UsageOption,
    /// Place for an inserted cap; `None`: the front of the body.
    pub cap_place: Option<CapPlace>,
}

/// Byte range that an inserted cap replaces, and the text before and after the cap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CapPlace {
    pub at: Range<usize>,
    pub before: &'static str,
    pub after: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CapSpan {
    pub field: &'static str,
    pub value: Option<u64>,
    pub at: Range<usize>,
}

/// Change to a request's body that makes a stream report its usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum UsageOption {
    /// Nothing to change: the dialect has no such option, the request is no stream, or the client has set it.
    #[default]
    Nothing,
    /// `stream_options` is absent, and the whole object is inserted.
    InsertObject,
    /// `stream_options` is null, at this byte range, and is replaced.
    ReplaceObject(Range<usize>),
    /// `stream_options` has no `include_usage`: the member is inserted behind the `{`, at byte `open`.
    InsertMember { open: usize, empty: bool },
    /// `include_usage` is false or null: its value, at this byte range, is replaced by `true`.
    ReplaceMember(Range<usize>),
}

/// State of the one pass over a request body.
pub(super) trait BodyReader: Sized {
    /// Reads the value of the member `key`.
    fn member(&mut self, json: &mut Scanner<'_>, key: &str) -> Result<()>;

    /// Returns the facts of the body, when all its members were read. `frame`: bytes of the object without its values.
    fn finish(self, frame: u64) -> Result<Request>;
}

/// Reads a body, which must be one object.
pub(super) fn read_body(body: &[u8], mut reader: impl BodyReader) -> Result<Request> {
    let mut json = Scanner::new(body)?;
    match json.kind()? {
        Kind::Object => {}
        had => return Err(BadRequest::NotAnObject { had: had.name() }),
    }
    let open = json.position() + 1;
    let frame = json.object(|json, key| reader.member(json, key))?;
    json.end()?;
    let mut request = reader.finish(frame)?;
    (request.spans.body_len, request.spans.open) = (body.len(), open);
    Ok(request)
}

/// Returns the value of a member that a body must have. Errors: `missing_field`.
pub(super) fn required<T>(field: &'static str, value: Option<T>) -> Result<T> {
    value.ok_or(BadRequest::Missing { field })
}

/// Reason why a request is refused (400 or 403) without going upstream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    #[error("the body is not UTF-8: a stray byte at {at}")]
    NotUtf8 { at: usize },
    #[error("the body is not JSON: wanted {wanted} at byte {at}, had {had}")]
    NotJson { at: usize, wanted: &'static str, had: String },
    #[error("the body nests deeper than {limit} levels")]
    TooDeep { limit: usize },
    #[error("the key {key:?} is there twice in one object")]
    DuplicateKey { key: String },
    #[error("the body is {had}, wanted a JSON object")]
    NotAnObject { had: &'static str },
    #[error("`{field}` is missing")]
    Missing { field: &'static str },
    #[error("`{field}` is {had}, wanted {wanted}")]
    WrongType { field: String, wanted: &'static str, had: String },
    #[error("{what} is not metered yet; nothing was sent")]
    NotMetered { what: &'static str },
}

impl BadRequest {
    /// Returns the HTTP status of the refusal and its stable code.
    pub fn fact(&self) -> (u16, &'static str) {
        match self {
            Self::NotUtf8 { .. } | Self::NotJson { .. } | Self::TooDeep { .. } | Self::NotAnObject { .. } => {
                (400, "invalid_json")
            }
            Self::DuplicateKey { .. } => (400, "duplicate_key"),
            Self::Missing { .. } => (400, "missing_field"),
            Self::WrongType { .. } => (400, "wrong_type"),
            Self::NotMetered { .. } => (403, "not_metered"),
        }
    }
}

/// Parses the name of a service tier. `Some(None)`: the provider decides which tier it bills; `None`: the name has no
/// price column.
pub(super) fn read_tier(tier: &str) -> Option<Option<ServiceTier>> {
    match tier {
        "auto" => Some(None),
        // Scale is capacity bought beforehand: its tokens have no price of their own.
        "default" | "standard" | "scale" => Some(Some(ServiceTier::Standard)),
        "flex" => Some(Some(ServiceTier::Flex)),
        // A request for `fast` is billed as priority.
        "priority" | "fast" => Some(Some(ServiceTier::Priority)),
        "batch" => Some(Some(ServiceTier::Batch)),
        _ => None,
    }
}

/// Lowers every cap above `cap`; inserts one where the client set none.
fn cap_splices(request: &Request, cap: u64, splices: &mut Vec<(Range<usize>, String)>) {
    let spans = &request.spans;
    if request.cap.is_some() {
        let higher = spans.caps.iter().filter(|c| c.value.is_some_and(|value| value > cap));
        splices.extend(higher.map(|c| (c.at.clone(), cap.to_string())));
        return;
    }
    match (spans.caps.iter().find(|c| c.field == request.cap_field), &spans.cap_place) {
        (Some(null), _) => splices.push((null.at.clone(), cap.to_string())),
        (None, Some(place)) => {
            splices.push((place.at.clone(), format!("{}{cap}{}", place.before, place.after)));
        }
        (None, None) => splices.push((spans.open..spans.open, format!("\"{}\":{cap},", request.cap_field))),
    }
}

fn usage_splice(spans: &Spans) -> Option<(Range<usize>, String)> {
    Some(match &spans.usage_option {
        UsageOption::Nothing => return None,
        UsageOption::InsertObject => {
            (spans.open..spans.open, "\"stream_options\":{\"include_usage\":true},".into())
        }
        UsageOption::ReplaceObject(at) => (at.clone(), "{\"include_usage\":true}".into()),
        UsageOption::InsertMember { open, empty } => {
            (*open..*open, format!("\"include_usage\":true{}", if *empty { "" } else { "," }))
        }
        UsageOption::ReplaceMember(at) => (at.clone(), "true".into()),
    })
}

fn splice(body: &[u8], mut splices: Vec<(Range<usize>, String)>) -> Cow<'_, [u8]> {
    if splices.is_empty() {
        return Cow::Borrowed(body);
    }
    // Stable: two insertions at one place stay in the order they were made.
    splices.sort_by_key(|(at, _)| at.start);
    let added: usize = splices.iter().map(|(_, text)| text.len()).sum();
    let mut out = Vec::with_capacity(body.len() + added);
    let mut from = 0;
    for (at, text) in splices {
        out.extend_from_slice(&body[from..at.start]);
        out.extend_from_slice(text.as_bytes());
        from = at.end;
    }
    out.extend_from_slice(&body[from..]);
    Cow::Owned(out)
}
