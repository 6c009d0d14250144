//! Rate limits reported in a provider's answer: how much is left, and until when.

use outlast_core::call::{Levels, rate::Level};

use super::told_time::Says;

/// Longest reset of a rate limit that a call waits for, in milliseconds. A longer one is that of a daily or
/// monthly quota.
const FARTHEST_MS: i64 = 120_000;

/// Reads the rate limits from the headers of an answer with HTTP `status`.
///
/// Understands OpenAI's headers (`x-ratelimit-remaining-requests`, …), which Groq, Azure and others also send, and
/// Anthropic's (`anthropic-ratelimit-requests-remaining`, …). A 429 with a long time to wait is no refusal for a rate.
pub fn rate_limits(status: u16, says: &Says<'_>) -> Levels {
    let openai = |what: &str| level(says, |name| format!("x-ratelimit-{name}-{what}"));
    let anthropic = |what: &str| level(says, |name| format!("anthropic-ratelimit-{what}-{name}"));
    let requests = openai("requests").or_else(|| anthropic("requests"));
    let tokens = openai("tokens").or_else(|| anthropic("input-tokens")).or_else(|| anthropic("tokens"));
    let wait_ms = says.retry_after().map_or(0, |at| at.ms_since(says.now).max(0));
    let refuses_ms = u64::try_from(wait_ms).ok().filter(|_| status == 429 && wait_ms <= FARTHEST_MS);
    Levels { requests, tokens, refuses_ms }
}

/// Reads the level of one limit. `header`: the name of the header that has its `remaining`, its `limit` or its `reset`.
fn level(says: &Says<'_>, header: impl Fn(&str) -> String) -> Option<Level> {
    let number = |name: &str| says.text(&header(name))?.parse().ok();
    let reset_ms = says.time(&header("reset"))?.ms_since(says.now);
    let reset_ms = u64::try_from(reset_ms).ok().filter(|ms| *ms <= FARTHEST_MS.unsigned_abs())?;
    Some(Level { remaining: number("remaining")?, limit: number("limit"), reset_ms })
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};
    use outlast_core::words::Micros;

    use super::*;

    /// 2026-11-20 08:00:00 UTC.
    const NOW: Micros = Micros(1_795_161_600_000_000);

    #[track_caller]
    fn check(status: u16, headers: &[(&str, &str)], wanted: Levels) {
        let map: HeaderMap = headers
            .iter()
            .map(|(k, v)| (HeaderName::try_from(*k).unwrap(), HeaderValue::try_from(*v).unwrap()))
            .collect();
        assert_eq!(rate_limits(status, &Says { headers: &map, now: NOW }), wanted, "{headers:?}");
    }

    #[test]
    fn levels_are_read_from_the_headers_of_either_provider() {
        let level = |remaining, limit, reset_ms| Some(Level { remaining, limit, reset_ms });
        check(200, &[], Levels::default());
        check(
            200,
            &[
                ("x-ratelimit-limit-requests", "500"),
                ("x-ratelimit-remaining-requests", "499"),
                ("x-ratelimit-reset-requests", "120ms"),
                ("x-ratelimit-remaining-tokens", "0"),
                ("x-ratelimit-reset-tokens", "1m12.5s"),
            ],
            Levels { requests: level(499, Some(500), 120), tokens: level(0, None, 72_500), refuses_ms: None },
        );
        check(
            200,
            &[
                ("anthropic-ratelimit-requests-limit", "50"),
                ("anthropic-ratelimit-requests-remaining", "0"),
                ("anthropic-ratelimit-requests-reset", "2026-11-20T08:00:06Z"),
                ("anthropic-ratelimit-tokens-remaining", "7"),
                ("anthropic-ratelimit-tokens-reset", "2026-11-20T08:00:09Z"),
                ("anthropic-ratelimit-input-tokens-remaining", "5"),
                ("anthropic-ratelimit-input-tokens-reset", "2026-11-20T08:00:10Z"),
            ],
            Levels { requests: level(0, Some(50), 6_000), tokens: level(5, None, 10_000), refuses_ms: None },
        );
    }

    #[test]
    fn a_days_quota_and_what_cannot_be_read_are_no_rate() {
        let one = |remaining, reset| {
            [("x-ratelimit-remaining-requests", remaining), ("x-ratelimit-reset-requests", reset)]
        };
        check(200, &one("0", "8h38m"), Levels::default());
        check(200, &one("few", "1s"), Levels::default());
        check(200, &one("0", "soon"), Levels::default());
        check(200, &[("anthropic-ratelimit-requests-reset", "2026-11-20T07:00:00Z")], Levels::default());
        let refuses = |ms| Levels { refuses_ms: ms, ..Levels::default() };
        check(429, &[("retry-after", "7")], refuses(Some(7_000)));
        check(429, &[], refuses(Some(0)));
        check(429, &[("retry-after", "3600")], refuses(None));
        check(503, &[("retry-after", "7")], refuses(None));
    }
}
