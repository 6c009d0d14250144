//! Outages in answers: tells a refusal of everything from a refusal of one request.

use outlast_core::words::Cause;
use serde_json::Value;

use super::{Upstream, lenient::parse_json};

/// Longest time, in milliseconds, that a client's own header is believed to wait for an answer.
const LONGEST_WAIT_MS: u64 = 3_600_000;

/// Returns the cause of an outage, if the answer is one that the upstream may give to every call now; `None` for any
/// other answer.
///
/// `is_own_key`: Outlast sent a key of its own. A refused key or ended quota of the caller's own is no outage.
pub fn outage(upstream: Upstream, status: u16, body: &[u8], is_own_key: bool) -> Option<Cause> {
    match status {
        500 | 502..=504 | 520..=529 => Some(Cause::Failing(status)),
        _ if !is_own_key => None,
        401 | 403 => Some(Cause::KeyRefused(status)),
        402 => Some(Cause::QuotaEnded(status)),
        _ => (upstream.row().refused_key)(status, body),
    }
}

pub(super) fn openai(status: u16, body: &[u8]) -> Option<Cause> {
    (status == 429 && has_no_credit(body)).then_some(Cause::QuotaEnded(status))
}

pub(super) fn anthropic(status: u16, body: &[u8]) -> Option<Cause> {
    (status == 400 && says(body, "credit balance is too low")).then_some(Cause::QuotaEnded(status))
}

pub(super) fn google(status: u16, body: &[u8]) -> Option<Cause> {
    (status == 400 && says(body, "API_KEY_INVALID")).then_some(Cause::KeyRefused(status))
}

fn says(body: &[u8], text: &str) -> bool {
    memchr::memmem::find(body, text.as_bytes()).is_some()
}

fn has_no_credit(body: &[u8]) -> bool {
    let body: Value = parse_json(body).unwrap_or_default();
    ["type", "code"].iter().any(|member| body["error"][member] == "insufficient_quota")
}

/// Returns for how long a call may be held, in milliseconds: nine tenths of the time that the client says it waits;
/// `None` if it does not say.
///
/// The official SDKs send their time-out, in seconds, in a header: Python's that of one read, Node's that of the whole
/// request.
pub fn patience_ms<'h>(header: impl Fn(&str) -> Option<&'h str>) -> Option<u64> {
    let said = header("x-stainless-read-timeout").or_else(|| header("x-stainless-timeout"))?;
    let seconds: f64 = said.trim().parse().ok().filter(|s: &f64| s.is_finite() && *s > 0.0)?;
    Some(((seconds * 900.0) as u64).min(LONGEST_WAIT_MS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_every_call_would_be_told_is_an_outage() {
        use {Cause::*, Upstream::*};
        let quota = r#"{"error":{"type":"insufficient_quota","code":"insufficient_quota"}}"#;
        let credit = r#"{"error":{"message":"Your credit balance is too low to access the Anthropic API"}}"#;
        let key = r#"{"error":{"code":400,"details":[{"reason":"API_KEY_INVALID"}]}}"#;
        let limited = r#"{"error":{"type":"requests","code":"rate_limit_exceeded"}}"#;
        for (upstream, status, body, ours, theirs) in [
            (OpenAi, 500, "", Some(Failing(500)), Some(Failing(500))),
            (Anthropic, 529, "", Some(Failing(529)), Some(Failing(529))),
            (OpenAi, 501, "", None, None),
            (OpenAi, 401, "", Some(KeyRefused(401)), None),
            (Anthropic, 403, "", Some(KeyRefused(403)), None),
            (Gemini, 400, key, Some(KeyRefused(400)), None),
            (OpenAi, 400, key, None, None),
            (OpenAi, 402, "", Some(QuotaEnded(402)), None),
            (OpenAi, 429, quota, Some(QuotaEnded(429)), None),
            (OpenAi, 429, limited, None, None),
            (OpenAi, 429, "insufficient_quota", None, None),
            (Anthropic, 429, quota, None, None),
            (Anthropic, 400, credit, Some(QuotaEnded(400)), None),
            (Anthropic, 400, "", None, None),
            (OpenAi, 404, "", None, None),
        ] {
            let body = body.as_bytes();
            let had = (outage(upstream, status, body, true), outage(upstream, status, body, false));
            assert_eq!(had, (ours, theirs), "{upstream:?} {status}");
        }
    }

    #[test]
    fn a_call_is_held_within_the_time_out_that_its_client_names() {
        let check = |headers: &[(&str, &'static str)], wanted: Option<u64>| {
            let found = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
            assert_eq!(patience_ms(found), wanted, "{headers:?}");
        };
        check(&[], None);
        check(&[("x-stainless-timeout", "600")], Some(540_000));
        check(&[("x-stainless-read-timeout", "0.5")], Some(450));
        check(&[("x-stainless-read-timeout", "10"), ("x-stainless-timeout", "600")], Some(9_000));
        check(&[("x-stainless-timeout", "999999")], Some(LONGEST_WAIT_MS));
        for said in ["", "never", "NaN", "-1", "0", "inf"] {
            check(&[("x-stainless-timeout", said)], None);
        }
    }
}
