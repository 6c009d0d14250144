//! Responses of the fake provider: answers, their faults, and refusals in each API's own shape.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use super::{
    answer::Answer,
    anthropic,
    body::{Body, End},
    embeddings, gemini, openai,
    refusal::Refusal,
    request::{Dialect, Request},
    responses,
    script::Fault,
};

/// Builds the response that carries an answer; `gap` is the time between two frames of a stream.
pub(super) fn write(
    request: &Request<'_>,
    answer: &Answer<'_>,
    fault: Option<Fault>,
    gap: Duration,
) -> Response<Body> {
    let (media_type, mut frames) = match (request.streams(), request.dialect) {
        (true, Dialect::Gemini) if request.is_array() => {
            ("application/json", gemini::frames(request, answer))
        }
        (true, Dialect::Gemini) => ("text/event-stream", gemini::frames(request, answer)),
        (false, Dialect::Gemini) => ("application/json", vec![gemini::whole(answer).into()]),
        (true, Dialect::OpenAi) => ("text/event-stream; charset=utf-8", openai::frames(answer)),
        (true, Dialect::Responses) => {
            ("text/event-stream; charset=utf-8", responses::frames(request, answer))
        }
        (true, Dialect::Anthropic) => ("text/event-stream; charset=utf-8", anthropic::frames(answer)),
        (false, Dialect::OpenAi) => ("application/json", vec![openai::whole(answer).into()]),
        (false, Dialect::Responses) => {
            ("application/json", vec![responses::response(request, answer).to_string().into()])
        }
        (_, Dialect::Embeddings) => ("application/json", vec![embeddings::whole(request, answer).into()]),
        (false, Dialect::Anthropic) => ("application/json", vec![anthropic::whole(answer).into()]),
    };
    let body = match fault {
        Some(Fault::Garbage) => Body::whole("<html>this is not what you asked for"),
        Some(Fault::Truncate) => {
            halve(&mut frames);
            Body::frames(frames, gap, End::Cut)
        }
        Some(Fault::Hang) => {
            halve(&mut frames);
            Body::frames(frames, gap, End::Hang)
        }
        Some(Fault::Linger(after)) if request.streams() => {
            // Anthropic ends an answer by two events.
            let last = if request.dialect == Dialect::Anthropic { 2 } else { 1 };
            let after_ms = u32::try_from(after.as_millis()).unwrap_or(u32::MAX);
            Body::frames(frames, gap, End::Late { frames: last, after_ms })
        }
        _ if request.streams() => Body::frames(frames, gap, End::Clean),
        _ => Body::whole(frames.pop().unwrap_or_default()),
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    if request.streams() {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    if let Ok(id) = HeaderValue::try_from(format!("req_{}", answer.id)) {
        headers.insert(request_id(request.dialect), id);
    }
    response
}

/// Keeps half of the frames; of a single frame half of its bytes.
fn halve(frames: &mut Vec<Bytes>) {
    match frames.as_mut_slice() {
        [only] => only.truncate(only.len() / 2),
        _ => frames.truncate(frames.len() / 2),
    }
}

/// Builds the response of a refusal, in the words of the request's API.
pub(super) fn refuse(dialect: Dialect, refusal: &Refusal) -> Response<Body> {
    let (status, message) = (refusal.status(), format!("mock: {refusal}"));
    if *refusal == Refusal::NoCredit {
        return no_credit(dialect, &message);
    }
    if let Refusal::UsageLimit(limit) = refusal {
        return limited(dialect, &message, *limit);
    }
    let mut response = json(status, error(dialect, status, &message));
    let headers = response.headers_mut();
    headers.insert(request_id(dialect), HeaderValue::from_static("req_mock"));
    if status == StatusCode::TOO_MANY_REQUESTS {
        let after = if let Refusal::RateLimit(after) = refusal { *after } else { Duration::from_secs(1) };
        headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_millis().div_ceil(1_000) as u64));
    }
    response
}

/// Returns an error's body, in the shape of the request's API.
fn error(dialect: Dialect, status: StatusCode, message: &str) -> String {
    match dialect {
        Dialect::OpenAi | Dialect::Responses | Dialect::Embeddings => openai::error(status, message),
        Dialect::Anthropic => anthropic::error(status, message),
        Dialect::Gemini => gemini::error(status, message),
    }
}

/// Builds the refusal for an account without credit, with each provider's status and words.
fn no_credit(dialect: Dialect, message: &str) -> Response<Body> {
    let status = match dialect {
        Dialect::OpenAi | Dialect::Responses | Dialect::Embeddings => {
            return json(StatusCode::TOO_MANY_REQUESTS, openai::no_credit(message));
        }
        Dialect::Anthropic => StatusCode::BAD_REQUEST,
        Dialect::Gemini => StatusCode::PAYMENT_REQUIRED,
    };
    json(status, error(dialect, status, message))
}

/// Builds the refusal for a plan's usage limit, in each provider's shape.
fn limited(dialect: Dialect, message: &str, limit: Duration) -> Response<Body> {
    let over = SystemTime::now() + limit;
    // Rounded up, because a retry that comes too early would be refused again.
    let over_s = over.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis().div_ceil(1000) as u64;
    let status = StatusCode::TOO_MANY_REQUESTS;
    let text = match dialect.is_openai() {
        true => openai::usage_limit(message, over_s, limit),
        false => error(dialect, status, message),
    };
    let mut response = json(status, text);
    let headers = response.headers_mut();
    headers.insert(request_id(dialect), HeaderValue::from_static("req_mock"));
    headers.insert(header::RETRY_AFTER, HeaderValue::from(limit.as_secs().max(1)));
    if dialect == Dialect::Anthropic {
        headers.insert("anthropic-ratelimit-unified-status", HeaderValue::from_static("rejected"));
        if let Ok(over) = HeaderValue::from_str(&over_s.to_string()) {
            headers.insert("anthropic-ratelimit-unified-reset", over);
        }
    }
    response
}

/// Builds a JSON response.
pub(super) fn json(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Body::whole(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn request_id(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::OpenAi | Dialect::Responses | Dialect::Embeddings | Dialect::Gemini => "x-request-id",
        Dialect::Anthropic => "request-id",
    }
}
