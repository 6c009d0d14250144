//! Usage limits: tells a 429 that is over in hours from one that is over in seconds, and reads when it is over.
//!
//! An ordinary rate limit is over in seconds: it passes, and the SDK tries again. A usage limit (a plan's five
//! hours or week, a day's requests) outlasts every retry: the supervisor of the agent sleeps until it is over.

use http::HeaderMap;
use outlast_core::words::id::Micros;
use serde::Deserialize;

use super::{
    Upstream,
    says::{Says, seconds, span_ms},
};

/// Longest wait, in milliseconds, that is left to the SDK's own retries.
const SHORT_MS: i64 = 120_000;

/// Farthest end of a usage limit that is believed, in milliseconds: no plan has a period longer than a month.
const FARTHEST_MS: i64 = 32 * 86_400_000;

/// Returns the time until which the upstream refuses every request; `None` for an answer that is no usage limit.
///
/// `status`, `headers` and `body` are those of the answer; `now` is the time it arrived. A limit without an end (an
/// account without credit: `insufficient_quota`) is not a usage limit, because waiting does not end it.
pub fn usage_limit(
    upstream: Upstream,
    status: u16,
    headers: &HeaderMap,
    body: &[u8],
    now: Micros,
) -> Option<Micros> {
    if status != 429 {
        return None;
    }
    let says = Says { headers, now };
    let until = match upstream {
        Upstream::Anthropic => anthropic(&says),
        Upstream::OpenAi => openai(&says, body),
        // A daily quota, recognised by the time to wait.
        Upstream::Gemini => long(&says, says.retry_after()),
    }?;
    (until > now && until.ms_since(now) <= FARTHEST_MS).then_some(until)
}

/// Reads the end of a plan's limit, which Anthropic marks as such (`unified`). With an API key, limits are
/// per minute or per day, and the time to wait shows which.
fn anthropic(says: &Says<'_>) -> Option<Micros> {
    if says.text("anthropic-ratelimit-unified-status") == Some("rejected") {
        return says.moment("anthropic-ratelimit-unified-reset").or_else(|| says.retry_after());
    }
    long(
        says,
        says.retry_after().or_else(|| {
            let used_up =
                |what: &&&str| says.text(&format!("anthropic-ratelimit-{what}-remaining")) == Some("0");
            let kinds = ["requests", "tokens", "input-tokens", "output-tokens"];
            let resets = kinds.iter().filter(used_up);
            resets.filter_map(|what| says.moment(&format!("anthropic-ratelimit-{what}-reset"))).max()
        }),
    )
}

/// Reads the end of a plan's limit, which the error names (`usage_limit_reached`). With an API key, the time
/// to wait shows whether it is a long one.
fn openai(says: &Says<'_>, body: &[u8]) -> Option<Micros> {
    let error = serde_json::from_slice::<Body>(body).map(|b| b.error).unwrap_or_default();
    let is = |code: &str| error.kind.as_deref() == Some(code) || error.code.as_deref() == Some(code);
    if is("usage_limit_reached") {
        let window = |name: &str| {
            let used: f64 = says.text(&format!("x-codex-{name}-used-percent"))?.parse().ok()?;
            let after = says.text(&format!("x-codex-{name}-reset-after-seconds"))?;
            (used >= 100.0).then(|| says.after(seconds(after)?)).flatten()
        };
        let named = error.resets_at.and_then(|s| s.checked_mul(1_000_000)).map(Micros);
        return named
            .or_else(|| says.after(error.resets_in_seconds?.checked_mul(1000)?))
            .or_else(|| says.retry_after())
            .or_else(|| window("primary").max(window("secondary")));
    }
    if is("insufficient_quota") {
        return None;
    }
    long(
        says,
        says.retry_after().or_else(|| {
            let used_up = |what: &&&str| says.text(&format!("x-ratelimit-remaining-{what}")) == Some("0");
            let resets = ["requests", "tokens"].iter().filter(used_up);
            resets
                .filter_map(|what| says.after(span_ms(says.text(&format!("x-ratelimit-reset-{what}"))?)?))
                .max()
        }),
    )
}

/// Returns `until` if it is too far ahead for an SDK's own retries; else `None`.
fn long(says: &Says<'_>, until: Option<Micros>) -> Option<Micros> {
    until.filter(|until| until.ms_since(says.now) > SHORT_MS)
}

#[derive(Deserialize)]
struct Body {
    error: ErrorBody,
}

#[derive(Default, Deserialize)]
struct ErrorBody {
    #[serde(rename = "type")]
    kind: Option<String>,
    code: Option<String>,
    resets_at: Option<i64>,
    resets_in_seconds: Option<i64>,
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    /// 2026-11-20 08:00:00 UTC.
    const NOW: Micros = Micros(1_795_161_600_000_000);

    /// Checks after how many seconds the limit is over.
    #[track_caller]
    fn check(upstream: Upstream, headers: &[(&str, &str)], body: &str, wanted_s: Option<i64>) {
        let headers: HeaderMap = headers
            .iter()
            .map(|(k, v)| (HeaderName::try_from(*k).unwrap(), HeaderValue::try_from(*v).unwrap()))
            .collect();
        let until = usage_limit(upstream, 429, &headers, body.as_bytes(), NOW);
        assert_eq!(until.map(|at| at.ms_since(NOW) / 1000), wanted_s, "{headers:?} {body}");
        assert_eq!(usage_limit(upstream, 529, &headers, body.as_bytes(), NOW), None, "only a 429");
    }

    #[test]
    fn anthropics_plan_limits_are_told_by_their_status_and_others_by_their_length() {
        let a = |headers: &[(&str, &str)], wanted| check(Upstream::Anthropic, headers, "", wanted);
        let rejected = ("anthropic-ratelimit-unified-status", "rejected");
        a(&[rejected, ("anthropic-ratelimit-unified-reset", "1795168800")], Some(7200));
        a(&[rejected, ("anthropic-ratelimit-unified-reset", "1795161601")], Some(1));
        a(&[rejected, ("anthropic-ratelimit-unified-reset", "2026-11-20T10:00:00Z")], Some(7200));
        a(&[rejected, ("retry-after", "30")], Some(30));
        a(&[rejected], None);
        // Over already, or never.
        a(&[rejected, ("anthropic-ratelimit-unified-reset", "1795161600")], None);
        a(&[rejected, ("anthropic-ratelimit-unified-reset", "9999999999")], None);
        a(&[("anthropic-ratelimit-unified-status", "allowed_warning"), ("retry-after", "5")], None);
        a(&[("anthropic-ratelimit-unified-status", "allowed"), ("retry-after", "3600")], Some(3600));
        a(&[("retry-after", "60")], None);
        a(&[("retry-after", "120")], None);
        a(&[("retry-after", "121")], Some(121));
        a(&[("retry-after", "Fri, 20 Nov 2026 09:00:00 GMT")], Some(3600));
        a(&[("retry-after", "soon")], None);
        a(&[("retry-after", "-5")], None);
        let reset = ("anthropic-ratelimit-tokens-reset", "2026-11-20T09:30:00.5Z");
        a(&[("anthropic-ratelimit-tokens-remaining", "0"), reset], Some(5400));
        a(&[("anthropic-ratelimit-tokens-remaining", "7"), reset], None);
        a(&[], None);
    }

    #[test]
    fn openais_plan_limits_are_told_by_their_code_and_others_by_their_length() {
        let o = |headers: &[(&str, &str)], body: &str, wanted| check(Upstream::OpenAi, headers, body, wanted);
        o(&[], r#"{"error":{"type":"usage_limit_reached","resets_in_seconds":8040}}"#, Some(8040));
        o(
            &[],
            r#"{"error":{"type":"usage_limit_reached","resets_at":1795161602,"resets_in_seconds":9}}"#,
            Some(2),
        );
        o(&[("retry-after", "9")], r#"{"error":{"code":"usage_limit_reached"}}"#, Some(9));
        let window =
            |used| [("x-codex-primary-used-percent", used), ("x-codex-primary-reset-after-seconds", "600")];
        o(&window("100.0"), r#"{"error":{"type":"usage_limit_reached"}}"#, Some(600));
        o(&window("40"), r#"{"error":{"type":"usage_limit_reached"}}"#, None);
        o(&[], r#"{"error":{"type":"usage_limit_reached"}}"#, None);
        // No credit: that does not come back by itself.
        let quota = r#"{"error":{"type":"insufficient_quota","code":"insufficient_quota"}}"#;
        o(&[], quota, None);
        o(&[("retry-after", "86400")], quota, None);
        let limited = r#"{"error":{"type":"requests","code":"rate_limit_exceeded"}}"#;
        o(&[("retry-after", "1")], limited, None);
        o(&[("retry-after-ms", "1500")], limited, None);
        o(&[("retry-after-ms", "7200000")], limited, Some(7200));
        let daily = ("x-ratelimit-reset-requests", "8h38m24s");
        o(&[("x-ratelimit-remaining-requests", "0"), daily], limited, Some(31_104));
        o(&[("x-ratelimit-remaining-requests", "12"), daily], limited, None);
        o(&[("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "6m0s")], limited, Some(360));
        o(&[("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "120ms")], limited, None);
        o(&[], "not json", None);
        o(&[("retry-after", "600")], "not json", Some(600));
    }
}
