//! Handling of a request: whether it is allowed, fails or is paid, and what is sent when.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt, io,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use outlast_core::words::Digest;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    answer::{self, Answer},
    anthropic,
    body::{self, Body},
    cache::{Cache, Cached, Prompt},
    embeddings, gemini,
    kept::Kept,
    log::Log,
    openai,
    options::Bucket,
    options::{Encoding, Options},
    outage::Course,
    plan::{Plan, ReportedUse, Used},
    refusal::{MAX_BODY, Refusal},
    request::{self, Dialect, Request},
    response::{json, refuse, write},
    responses,
    route::Manner,
    route::{About, Route, credential, dialect, route},
    script::{Fault, Script, ToolCall},
};

/// Models that `GET /v1/models` lists. Any other model answers as well.
const MODELS: [&str; 5] =
    ["gpt-5", "gpt-4o-mini", "claude-sonnet-4-5", "claude-haiku-4-5", "gemini-2.5-flash"];

/// Request as the provider received it.
#[derive(Clone, Debug)]
pub struct Received {
    pub method: Method,
    /// Path and query of the request.
    pub target: String,
    pub headers: HeaderMap,
    /// Body, still in its `Content-Encoding`; empty if it was too large or broke off.
    pub body: Bytes,
    /// Number of the request among the paid ones, from 1; `None` if it was not paid.
    pub paid: Option<u64>,
}

/// State of the provider that all its connections share.
pub(super) struct Provider {
    options: Options,
    pub course: Course,
    log: Option<Log>,
    /// Number of requests for a message so far: the position in the sequence of failures.
    drawn: AtomicU64,
    counts: Mutex<Counts>,
    plan: Mutex<Plan>,
    bucket: Option<Mutex<Bucket>>,
    /// Start of the cache's clock. Tests that pause tokio's time move it.
    began: Instant,
    received: Option<Mutex<Vec<Received>>>,
}

/// Counts kept for the provider's life, with an entry for each distinct digest and cached prefix.
#[derive(Default)]
struct Counts {
    paid: u64,
    occurrences: HashMap<Digest, u64>,
    /// Number of refusals so far of each request with `mock: status CODE N`, by the request's digest.
    refusals: HashMap<Digest, u64>,
    cache: Cache,
    kept: Kept,
}

/// Decision about a request.
enum Verdict {
    Respond { after: Duration, response: Response<Body> },
    Silence,
}

impl Verdict {
    /// Answers at once with a JSON text, which costs nothing.
    fn told(text: String) -> Verdict {
        Verdict::Respond { after: Duration::ZERO, response: json(StatusCode::OK, text) }
    }
}

impl Provider {
    pub fn open(options: Options) -> io::Result<Self> {
        let log = options.log.as_deref().map(Log::open).transpose()?;
        let counts = Mutex::default();
        let course = Course::begin(options.outages.clone());
        let options_plan = options.plan.clone();
        let bucket = options.rate_limit.map(|limit| Mutex::new(Bucket::full(limit)));
        Ok(Self {
            options,
            course,
            log,
            drawn: AtomicU64::new(0),
            counts,
            plan: Mutex::new(Plan::begin(options_plan)),
            bucket,
            began: Instant::now(),
            received: None,
        })
    }

    pub fn keeping_requests(self) -> Self {
        Self { received: Some(Mutex::default()), ..self }
    }

    pub fn paid(&self) -> u64 {
        self.counts.lock().paid
    }

    pub fn received(&self) -> Vec<Received> {
        self.received.as_ref().map_or_else(Vec::new, |received| received.lock().clone())
    }

    /// Answers a request after the request's latency. Never returns if the request asked for silence.
    pub async fn respond(&self, request: hyper::Request<Incoming>) -> Response<Body> {
        let (mut head, body) = request.into_parts();
        let body = collect(body).await;
        let place = self.keep(&head, body.as_ref().ok());
        let manner = Manner::take(&mut head.uri);
        let dialect = dialect(&head);
        let response = match body.and_then(|body| self.judge(dialect, manner, &head, body, place)) {
            Ok(Verdict::Respond { after, response }) => {
                if !after.is_zero() {
                    tokio::time::sleep(after).await;
                }
                self.course.settles().await;
                response
            }
            // The connection drops this future when the client leaves.
            Ok(Verdict::Silence) => std::future::pending().await,
            Err(refusal) => refuse(dialect, &refusal),
        };
        self.encode(&head.headers, response)
    }

    /// Decides about a request, without waiting. Once this returns, a paid request is in the log.
    fn judge(
        &self,
        dialect: Dialect,
        manner: Manner,
        head: &Parts,
        body: Bytes,
        place: Option<usize>,
    ) -> Result<Verdict, Refusal> {
        let route = route(head)?;
        let credential = credential(manner, head)?;
        if let Route::Models = route {
            let list = match dialect {
                Dialect::OpenAi | Dialect::Responses | Dialect::Embeddings => openai::models(&MODELS),
                Dialect::Anthropic => anthropic::models(&MODELS),
                Dialect::Gemini => gemini::models(&MODELS),
            };
            return Ok(Verdict::told(list));
        }
        if let Route::Kept(id, about) = route {
            let kept = &mut self.counts.lock().kept;
            return Ok(Verdict::told(match about {
                About::Response => kept.response(id)?,
                About::InputItems => kept.input_items(id)?,
                About::Deletion => kept.delete(id)?,
            }));
        }
        if dialect == Dialect::Anthropic && !head.headers.contains_key("anthropic-version") {
            return Err(Refusal::bad("anthropic-version: header is required"));
        }
        let body = request::decode(&head.headers, body)?;
        if let Route::CountTokens = route {
            let tokens = answer::input_tokens(&body);
            return Ok(Verdict::told(match dialect {
                Dialect::Gemini => gemini::counted(tokens),
                _ => anthropic::counted(tokens),
            }));
        }

        let body = match dialect {
            Dialect::Responses => self.counts.lock().kept.expand(&body)?,
            Dialect::Embeddings => embeddings::expand(&body)?,
            Dialect::Gemini => gemini::expand(head.uri.path(), head.uri.query().unwrap_or(""), &body)?,
            Dialect::OpenAi | Dialect::Anthropic => Cow::Borrowed(&*body),
        };
        let request = Request::read(dialect, head.uri.path(), &body)?;
        let (script, tool_results) = request.script()?;
        let next_tool = next_tool(&request, &script, tool_results)?;
        if script.searches > request.max_searches() {
            let message =
                format!("search {}: the request allows {}", script.searches, request.max_searches());
            return Err(Refusal::bad(message));
        }
        self.course.asked()?;
        match script.fault {
            Some(Fault::Silent) => return Ok(Verdict::Silence),
            Some(Fault::Status(status, times)) if self.still_refuses(request.digest, times) => {
                return Err(Refusal::Asked(status));
            }
            Some(Fault::Limit(limit, times)) if self.still_refuses(request.digest, times) => {
                return Err(Refusal::UsageLimit(limit));
            }
            _ => {}
        }
        if let Some(status) = self.options.failure(self.drawn.fetch_add(1, Ordering::Relaxed)) {
            return Err(Refusal::ByChance(status));
        }
        if let Some(bucket) = &self.bucket {
            bucket.lock().take(Instant::now()).map_err(Refusal::RateLimit)?;
        }
        if let Some(limit) = self.plan.lock().refuses() {
            return Err(Refusal::UsageLimit(limit));
        }
        let prompt = Prompt::read(dialect, &body)?;
        let (n, occurrence, cached) = self.counts.lock().pay(request.digest, &prompt, self.began.elapsed());
        let answer =
            Answer::new(&request, &script, next_tool, occurrence, cached, &self.options).in_manner(manner);
        let (told, used) = self.plan.lock().count(answer.usage.input_total() + answer.usage.output);
        self.record(&request, &answer, n, occurrence, credential, &used)?;
        self.course.paid();
        if let (Some(received), Some(place)) = (&self.received, place) {
            received.lock()[place].paid = Some(n);
        }
        if dialect == Dialect::Responses {
            self.counts.lock().kept.keep(&body, responses::response(&request, &answer));
        }
        let after = script.latency.unwrap_or(self.options.latency);
        let mut response = write(&request, &answer, script.fault, after / 20);
        told.iter().for_each(|told: &ReportedUse| told.write(dialect, response.headers_mut()));
        Ok(Verdict::Respond { after, response })
    }

    /// Keeps the request for a test, if requests are kept; returns its index, or `None`.
    fn keep(&self, head: &Parts, body: Option<&Bytes>) -> Option<usize> {
        let mut received = self.received.as_ref()?.lock();
        received.push(Received {
            method: head.method.clone(),
            target: head.uri.to_string(),
            headers: head.headers.clone(),
            body: body.cloned().unwrap_or_default(),
            paid: None,
        });
        Some(received.len() - 1)
    }

    fn still_refuses(&self, digest: Digest, times: Option<u64>) -> bool {
        let Some(times) = times else { return true };
        let mut counts = self.counts.lock();
        let refused = counts.refusals.entry(digest).or_default();
        let refuses = *refused < times;
        *refused += u64::from(refuses);
        refuses
    }

    /// Logs a paid request; an answer that cannot be logged is not given. `n`: its number, which need not be the log's
    /// order. Of the credential the line has enough to tell two keys apart, and not to use one.
    fn record(
        &self,
        request: &Request<'_>,
        answer: &Answer<'_>,
        n: u64,
        occurrence: u64,
        credential: &str,
        plan: &[Used],
    ) -> Result<(), Refusal> {
        let Some(log) = &self.log else { return Ok(()) };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let shown = credential.char_indices().nth(6).map_or(credential, |(end, _)| &credential[..end]);
        let mut line = serde_json::json!({
            "n": n,
            "at_ms": now.as_millis() as u64,
            "dialect": request.dialect.name(),
            "model": answer.model,
            "stream": request.streams(),
            "digest": request.digest.to_string(),
            "occurrence": occurrence,
            "credential": shown,
            "bytes": request.body.len(),
            "input_tokens": answer.usage.input_total(),
            "cache_read_tokens": answer.usage.cache_read,
            "cache_write_tokens": answer.usage.cache_write_5m + answer.usage.cache_write_1h,
            "output_tokens": answer.usage.output,
            "asked": request.asked(),
        });
        if !plan.is_empty() {
            line["plan"] = serde_json::json!(plan);
        }
        log.append(&line).map_err(|error| Refusal::Internal(format!("cannot write the log: {error}")))
    }

    fn encode(&self, accepted: &HeaderMap, response: Response<Body>) -> Response<Body> {
        if self.options.encoding != Some(Encoding::Gzip) || !body::accepts_gzip(accepted) {
            return response;
        }
        let (mut head, body) = response.into_parts();
        head.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        head.headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        match body.gzip() {
            Ok(body) => Response::from_parts(head, body),
            Err(error) => json(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot compress: {error}")),
        }
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Counts {
    /// Counts a paid request: returns its number, its digest's occurrence, and the bytes the cache had of it.
    fn pay(&mut self, digest: Digest, prompt: &Prompt, now: Duration) -> (u64, u64, Cached) {
        self.paid += 1;
        let occurrence = self.occurrences.entry(digest).or_default();
        *occurrence += 1;
        (self.paid, *occurrence, self.cache.pass(prompt, now))
    }
}

/// Returns the call that this turn of the script makes, if tools are offered and not all calls have their
/// results.
fn next_tool(request: &Request<'_>, script: &Script, results: usize) -> Result<Option<ToolCall>, Refusal> {
    let Some(turn) = script.tools.get(results) else { return Ok(None) };
    let offered = request.tools();
    let nameless = request.nameless_tools();
    if offered.is_empty() && nameless.is_empty() {
        return Ok(None);
    }
    turn.call(&offered).map(Some).map_err(|wanted| {
        let beside =
            if nameless.is_empty() { String::new() } else { format!(", and without a name {nameless:?}") };
        Refusal::bad(format!("the script's next tool {wanted}, the request offers {offered:?}{beside}"))
    })
}

pub(super) async fn collect(body: Incoming) -> Result<Bytes, Refusal> {
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Refusal::TooLarge),
        Err(error) => Err(Refusal::bad(format!("the body broke off: {error}"))),
    }
}
