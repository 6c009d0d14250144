//! The proxy's own errors, in the shape that the caller's SDK reads.

use bytes::Bytes;
use serde_json::{Value, json};

use super::Upstream;

/// Builds the body of an error answer with HTTP `status`.
///
/// `code` is the proxy's own stable code (`dollar_budget_exceeded`, …). OpenAI's shape has a member for it; in
/// Anthropic's it is an extra member of `error`, which the SDK keeps in the exception's body. RiskKernel's clients read
/// `code` and `message` beside `error`. Google's SDK takes such a `code` for the HTTP status, so Gemini's shape has none.
pub fn refusal_body(shape: Upstream, status: u16, code: &str, message: &str) -> Bytes {
    let mut body = error(shape, status, code, message);
    if shape.row().repeats_code {
        (body["code"], body["message"]) = (code.into(), message.into());
    }
    body.to_string().into()
}

/// Builds the body of a 429 for a usage limit that ends at `until_s` (Unix seconds). The error is named
/// as the provider's clients know it.
pub fn usage_limit_body(shape: Upstream, code: &str, message: &str, until_s: i64) -> Bytes {
    let mut body = error(shape, 429, code, message);
    let limit_type = shape.row().limit_type;
    if !limit_type.is_empty() {
        (body["error"]["type"], body["error"]["resets_at"]) = (limit_type.into(), until_s.into());
    }
    if shape.row().repeats_code {
        (body["code"], body["message"]) = (code.into(), message.into());
    }
    body.to_string().into()
}

/// Builds a frame that ends a stream which broke after its HTTP 200.
///
/// The SDKs raise an error on it and do not retry: OpenAI's on any data with an `error` member, Anthropic's on `event:
/// error`.
pub fn error_frame(shape: Upstream, code: &str, message: &str) -> Bytes {
    shape.row().frame(&error(shape, 500, code, message))
}

/// Builds the element that reports an error as the last one of a stream that is one JSON array, and closes the array.
pub fn error_element(shape: Upstream, code: &str, message: &str, is_first: bool) -> Bytes {
    format!("{}{}]\n", if is_first { "[" } else { "," }, error(shape, 500, code, message)).into()
}

fn error(shape: Upstream, status: u16, code: &str, message: &str) -> Value {
    (shape.row().error)(status, code, message)
}

pub(super) fn openai(status: u16, code: &str, message: &str) -> Value {
    json!({ "error": { "message": message, "type": openai_type(status), "param": null, "code": code } })
}

pub(super) fn anthropic(status: u16, code: &str, message: &str) -> Value {
    json!({ "type": "error", "error": { "type": anthropic_type(status), "message": message, "code": code } })
}

/// Google's `code` is the HTTP status; the proxy's own code is the reason of a detail.
pub(super) fn google(status: u16, code: &str, message: &str) -> Value {
    let details = json!([{
        "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code, "domain": "outlast"
    }]);
    json!({ "error": { "code": status, "message": message, "status": google_status(status), "details": details } })
}

fn openai_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "insufficient_quota",
        403 => "permission_error",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    }
}

fn google_status(status: u16) -> &'static str {
    match status {
        401 => "UNAUTHENTICATED",
        402 | 429 => "RESOURCE_EXHAUSTED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        503 => "UNAVAILABLE",
        504 => "DEADLINE_EXCEEDED",
        400..=499 => "INVALID_ARGUMENT",
        _ => "INTERNAL",
    }
}

fn anthropic_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        409 => "conflict_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_the_shape_its_sdk_reads() {
        for (shape, status, body) in [
            (
                Upstream::OpenAi,
                402,
                r#"{"error":{"message":"say \"when\"","type":"insufficient_quota","param":null,"code":"c"},"code":"c","message":"say \"when\""}"#,
            ),
            (
                Upstream::OpenAi,
                404,
                r#"{"error":{"message":"say \"when\"","type":"invalid_request_error","param":null,"code":"c"},"code":"c","message":"say \"when\""}"#,
            ),
            (
                Upstream::Anthropic,
                402,
                r#"{"type":"error","error":{"type":"billing_error","message":"say \"when\"","code":"c"},"code":"c","message":"say \"when\""}"#,
            ),
            (
                Upstream::Gemini,
                402,
                r#"{"error":{"code":402,"message":"say \"when\"","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"c","domain":"outlast"}]}}"#,
            ),
            (
                Upstream::Anthropic,
                503,
                r#"{"type":"error","error":{"type":"api_error","message":"say \"when\"","code":"c"},"code":"c","message":"say \"when\""}"#,
            ),
        ] {
            assert_eq!(refusal_body(shape, status, "c", "say \"when\""), body);
        }
    }

    #[test]
    fn an_error_frame_is_one_event_whatever_the_message() {
        for shape in [Upstream::OpenAi, Upstream::Anthropic, Upstream::Gemini] {
            let frame = error_frame(shape, "upstream_broken", "line\nline\r\n\n");
            let mut framer = super::super::sse::Framer::default();
            assert_eq!(framer.push(frame.clone()), [frame]);
        }
        let openai = error_frame(Upstream::OpenAi, "c", "m");
        assert!(openai.starts_with(b"data: {\"error\":{\"message\":\"m\""), "{openai:?}");
        let anthropic = error_frame(Upstream::Anthropic, "c", "m");
        assert!(anthropic.starts_with(b"event: error\ndata: {\"type\":\"error\""), "{anthropic:?}");
    }
}
