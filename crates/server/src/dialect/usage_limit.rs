//! Usage limits: tells a 429 that is over in hours from one that is over in seconds, and reads when it is over.
//!
//! An ordinary rate limit is over in seconds: it passes, and the SDK tries again. A usage limit (a plan's five
//! hours or week, a day's requests) outlasts every retry: the supervisor of the agent sleeps until it is over.
//!
//! Every provider, gateway and reseller says so in its own words and units. So none is asked for by name: whatever names
//! a wait or a reset counts, in the headers first, then in the members of the body, then in its prose.

use http::HeaderMap;
use outlast_core::words::Micros;
use serde_json::Value;

use super::{
    UpstreamError,
    answer::upstream_error,
    lenient::parse_json,
    told_time::Says,
    told_time::{Reader, next_midnight},
};

/// Longest wait, in milliseconds, that is left to the SDK's own retries.
const SHORT_MS: i64 = 120_000;

/// Farthest end of a usage limit that is believed, in milliseconds: no plan has a period longer than a month.
const FARTHEST_MS: i64 = 32 * 86_400_000;

/// Most bytes of a body that are read as prose.
const LONGEST_PROSE: usize = 4096;

/// Returns the time until which the upstream refuses every request; `None` for an answer that is no usage limit.
///
/// `status`, `headers` and `body` are those of the answer, or `body` is the data of an error event in it; `now` is the
/// time it arrived. A limit without an end (an account without credit: `insufficient_quota`) is not a usage limit, because
/// waiting does not end it.
pub fn usage_limit(status: u16, headers: &HeaderMap, body: &[u8], now: Micros) -> Option<Micros> {
    let says = Says { headers, now };
    let told = Told::of(body);
    let is = |codes: &[&str]| {
        let texts = [&told.error.kind, &told.error.code];
        texts.into_iter().flatten().any(|text| codes.iter().any(|code| code.eq_ignore_ascii_case(text)))
    };
    let is_refusal = match status {
        429 => true,
        200..=299 => is(&LIMITS),
        _ => false,
    };
    if !is_refusal || is(&["insufficient_quota"]) {
        return None;
    }
    let (spent, unclear) = resets(
        headers.iter().filter_map(|(name, value)| {
            let name = name.as_str();
            let is_limit = ["ratelimit", "rate-limit", "x-codex"].iter().any(|part| name.contains(part));
            Some((name.to_owned(), value.to_str().ok()?.trim().to_owned())).filter(|_| is_limit)
        }),
        &says.reader(),
    );
    let spent = spent.max(standard(&says));
    // A plan's limit is marked as such, and may be over soon; any other shows by its length that it is a long one.
    let is_plan = says.text("anthropic-ratelimit-unified-status") == Some("rejected")
        || is(&["usage_limit_reached", "usage_limit_exceeded"]);
    let (member, prose) = (told.member(&says.reader()), told.prose(&says.reader()));
    let until = if is_plan {
        member.or(spent).or_else(|| says.retry_after())
    } else {
        let wait = says.retry_after().or(spent).or(member).or(unclear).or(prose);
        wait.max(told.day(wait.is_some(), now)).filter(|until| until.ms_since(now) > SHORT_MS)
    }
    .or(prose.filter(|_| is_plan))?;
    (until > now && until.ms_since(now) <= FARTHEST_MS).then_some(until)
}

/// Codes and types of an error that is a limit of any kind, where the status does not say so.
const LIMITS: [&str; 7] = [
    "429",
    "rate_limit_exceeded",
    "rate_limit_error",
    "rate_limit_reached",
    "usage_limit_reached",
    "usage_limit_exceeded",
    "resource_exhausted",
];

/// Reads the resets among named values: the latest of those whose limit is used up, and the earliest of those that do
/// not say how much is left. A name such as `x-ratelimit-reset-requests` has a relative that says it, such as
/// `x-ratelimit-remaining-requests`.
fn resets(
    values: impl Iterator<Item = (String, String)>,
    reader: &Reader<'_>,
) -> (Option<Micros>, Option<Micros>) {
    let values: Vec<(String, String)> = values.collect();
    let find = |name: &str| values.iter().find(|(had, _)| had == name).map(|(_, value)| value.as_str());
    let number = |name: &str| find(name)?.parse::<f64>().ok();
    let (mut spent, mut unclear) = (None, None::<Micros>);
    for (name, value) in &values {
        let Some((stem, rest)) = name.split_once("reset") else { continue };
        let Some(at) = time(name, value, reader) else { continue };
        let remaining =
            number(&format!("{stem}remaining{rest}")).or_else(|| number(&format!("{stem}remaining")));
        let is_spent = remaining
            .map(|left| left <= 0.0)
            .or_else(|| Some(find(&format!("{stem}status"))? == "rejected"))
            .or_else(|| Some(number(&format!("{stem}used-percent"))? >= 100.0));
        match is_spent {
            Some(true) => spent = spent.max(Some(at)),
            Some(false) => {}
            None => unclear = Some(unclear.map_or(at, |before| before.min(at))),
        }
    }
    (spent, unclear)
}

/// Reads a value whose name may tell its unit: `retry-after-ms`, `reset-in-minutes`.
fn time(name: &str, value: &str, reader: &Reader<'_>) -> Option<Micros> {
    let units = [("ms", 1.0), ("milliseconds", 1.0), ("minutes", 60_000.0), ("hours", 3_600_000.0)];
    let unit = units.into_iter().find(|(unit, _)| name.ends_with(unit));
    unit.and_then(|(_, ms)| reader.number(value, ms)).or_else(|| reader.read(value))
}

/// Reads the reset of a used-up limit from the IETF's `RateLimit`: `"day";r=0;t=3600`, in earlier drafts
/// `limit=9, remaining=0, reset=3600`.
fn standard(says: &Says<'_>) -> Option<Micros> {
    let text = says.text("ratelimit")?;
    let of = |part: &str, names: [&str; 2]| {
        let pairs = part.split([';', ',']).filter_map(|pair| pair.trim().split_once('='));
        pairs.filter(|(name, _)| names.contains(name)).find_map(|(_, value)| value.parse::<i64>().ok())
    };
    let items: Vec<&str> = if text.contains(';') { text.split(',').collect() } else { vec![text] };
    let spent = items.into_iter().filter(|item| of(item, ["r", "remaining"]) == Some(0));
    spent.filter_map(|item| Some(says.now.plus_ms(of(item, ["t", "reset"])?.checked_mul(1000)?))).max()
}

/// Body of a refusal.
struct Told<'b> {
    error: UpstreamError,
    body: Value,
    text: &'b [u8],
}

impl Told<'_> {
    fn of(text: &[u8]) -> Told<'_> {
        let body = parse_json(text).unwrap_or_default();
        let first = body.get(0).unwrap_or(&body);
        let places = [&first["error"], &first["response"]["error"], first];
        let error =
            places.into_iter().filter(|place| place.is_object()).find_map(upstream_error).unwrap_or_default();
        Told { error, body, text }
    }

    /// Returns the time that a member of the body names: a wait, or else a reset.
    fn member(&self, reader: &Reader<'_>) -> Option<Micros> {
        let (mut waits, mut spent, mut unclear) = (None, None, None::<Micros>);
        for object in objects(&self.body) {
            let values: Vec<(String, String)> = object
                .iter()
                .filter_map(|(name, value)| match value {
                    Value::String(text) => Some((kebab(name), text.clone())),
                    Value::Number(number) => Some((kebab(name), number.to_string())),
                    _ => None,
                })
                .collect();
            let is_wait = |name: &str| {
                ["retry-after", "retry-delay", "retry-in", "retry-at"].iter().any(|w| name.contains(w))
            };
            let named = values.iter().filter(|(name, _)| is_wait(name));
            waits = waits.max(named.filter_map(|(name, value)| time(name, value, reader)).max());
            let (had, open) = resets(values.into_iter(), reader);
            spent = spent.max(had);
            unclear = [unclear, open].into_iter().flatten().min();
        }
        spent.or(waits).or(unclear)
    }

    /// Returns the time that the body's sentences name.
    fn prose(&self, reader: &Reader<'_>) -> Option<Micros> {
        if self.body.is_null() {
            return reader.find(&String::from_utf8_lossy(&self.text[..self.text.len().min(LONGEST_PROSE)]));
        }
        let texts =
            objects(&self.body).into_iter().flat_map(|object| object.values()).filter_map(Value::as_str);
        texts
            .filter(|text| text.len() <= LONGEST_PROSE && text.contains(' '))
            .find_map(|text| reader.find(text))
    }

    /// Returns the end of the day whose quota the body names. Google counts its days in Pacific time and tells the wait
    /// of a minute's quota beside it; others that tell no time are taken to count in UTC.
    fn day(&self, is_told: bool, now: Micros) -> Option<Micros> {
        let names =
            |text: &str| memchr::memmem::find(&self.text.to_ascii_lowercase(), text.as_bytes()).is_some();
        if names("perday") && names("googleapis.com") {
            return next_midnight(now, "PST");
        }
        let is_daily = ["per day", "per-day", "per_day", "perday", "daily"].iter().any(|text| names(text));
        let is_shorter = ["per minute", "per-minute", "per_minute", "perminute", "per second"]
            .iter()
            .any(|text| names(text));
        if is_daily && !is_shorter && !is_told { next_midnight(now, "UTC") } else { None }
    }
}

/// Returns all objects of a JSON value, outermost first.
fn objects(value: &Value) -> Vec<&serde_json::Map<String, Value>> {
    let mut found = Vec::new();
    let mut next = vec![value];
    while let Some(value) = next.pop() {
        match value {
            Value::Object(members) => {
                found.push(members);
                next.extend(members.values());
            }
            Value::Array(elements) => next.extend(elements),
            _ => {}
        }
    }
    found
}

/// Converts a member's name to the form of headers: `resetsAt`, `resets_at` and `X-Resets-At` have `resets-at`.
fn kebab(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    for c in name.chars() {
        if c.is_ascii_uppercase() && out.ends_with(|before: char| before.is_ascii_lowercase()) {
            out.push('-');
        }
        out.push(if c == '_' { '-' } else { c.to_ascii_lowercase() });
    }
    out
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    /// 2026-11-20 08:00:00 UTC.
    const NOW: Micros = Micros(1_795_161_600_000_000);

    /// Checks after how many seconds the limit is over.
    #[track_caller]
    fn check(headers: &[(&str, &str)], body: &str, wanted_s: Option<i64>) {
        let headers: HeaderMap = headers
            .iter()
            .map(|(k, v)| (HeaderName::try_from(*k).unwrap(), HeaderValue::try_from(*v).unwrap()))
            .collect();
        let until = usage_limit(429, &headers, body.as_bytes(), NOW);
        assert_eq!(until.map(|at| at.ms_since(NOW) / 1000), wanted_s, "{headers:?} {body}");
        assert_eq!(usage_limit(529, &headers, body.as_bytes(), NOW), None, "only a 429");
    }

    #[test]
    fn anthropics_plan_limits_are_told_by_their_status_and_others_by_their_length() {
        let a = |headers: &[(&str, &str)], wanted| check(headers, "", wanted);
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
        let o = |headers: &[(&str, &str)], body: &str, wanted| check(headers, body, wanted);
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

    /// Bug: a day's quota that was told in other words or units than three known ones was no usage limit. Consequence: the
    /// agent died of it again and again, until no restart was left. Cause: one provider's names and units were taken for
    /// the only ones.
    #[test]
    fn a_usage_limit_is_read_in_whatever_words_and_units_it_is_told() {
        let google = |details: &str| {
            format!(r#"{{"error":{{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{details}]}}}}"#)
        };
        let retry = |delay: &str| {
            format!(r#"{{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"{delay}"}}"#)
        };
        let day = r#"{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}"#;
        let message = |text: &str| format!(r#"{{"error":{{"message":"{text}","type":"rate_limit_error"}}}}"#);
        for (headers, body, seconds) in [
            // Headers: seconds, milliseconds, dates, spans, epochs.
            (&[("retry-after", "3600")][..], String::new(), 3600),
            (&[("retry-after", "3600.5")], String::new(), 3600),
            (&[("retry-after", "3600s")], String::new(), 3600),
            (&[("retry-after", "1795165200")], String::new(), 3600),
            (&[("retry-after", "Fri, 20 Nov 2026 09:00:00 GMT")], String::new(), 3600),
            (&[("retry-after", "2026-11-20T09:00:00Z")], String::new(), 3600),
            (&[("retry-after-ms", "3600000")], String::new(), 3600),
            (&[("x-ms-retry-after-ms", "3600000")], String::new(), 3600),
            (&[("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "1h0m0s")], String::new(), 3600),
            (&[("x-ratelimit-remaining-tokens-day", "0"), ("x-ratelimit-reset-tokens-day", "3600.2")], String::new(), 3600),
            (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1795165200")], String::new(), 3600),
            (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1795165200000")], String::new(), 3600),
            (&[("x-rate-limit-reset", "2026-11-20T09:00:00+00:00")], String::new(), 3600),
            (&[("ratelimit-remaining", "0"), ("ratelimit-reset", "3600")], String::new(), 3600),
            (&[("ratelimit", "limit=100, remaining=0, reset=3600")], String::new(), 3600),
            (&[("ratelimit", r#""minute";r=5;t=10, "day";r=0;t=3600"#)], String::new(), 3600),
            (&[("anthropic-ratelimit-unified-7d-status", "rejected"), ("anthropic-ratelimit-unified-7d-reset", "1795165200")], String::new(), 3600),
            (&[("x-codex-primary-used-percent", "100"), ("x-codex-primary-reset-at", "1795165200")], String::new(), 3600),
            // Members of the body.
            (&[], google(&retry("3600s")), 3600),
            (&[], google(&retry("3600.074824224s")), 3600),
            (&[], format!("[{}]", google(&retry("3600s"))), 3600),
            // Google's day ends at midnight in Pacific time, whatever the minute's wait beside it.
            (&[], google(&format!("{day},{}", retry("27s"))), 86_400),
            (&[], r#"{"error":{"code":429,"metadata":{"headers":{"X-RateLimit-Remaining":"0","X-RateLimit-Reset":"1795165200000"}}}}"#.into(), 3600),
            (&[], r#"{"error":{"retry_after":3600}}"#.into(), 3600),
            (&[], r#"{"detail":"quota","retryAfterMs":3600000}"#.into(), 3600),
            (&[], r#"{"error":{"code":"quota","resetsAt":"2026-11-20T09:00:00Z"}}"#.into(), 3600),
            (&[], r#"{"error":{"type":"usage_limit_reached","resets_at":1795165200}}"#.into(), 3600),
            (&[], r#"{"reset_in_minutes":60}"#.into(), 3600),
            // Sentences.
            (&[], message("Rate limit reached on requests per day (RPD). Please try again in 1h0m0s."), 3600),
            (&[], message("You've hit your limit. Try again at 9am (UTC)."), 3600),
            (&[], message("Usage limit reached, resets Nov 20, 9:00 AM UTC"), 3600),
            (&[], message("half a \\ud83d character: wait 3600 seconds"), 3600),
            (&[], "Too many requests, retry after 3600 seconds".into(), 3600),
            (&[], message("Daily quota exceeded"), 57_600),
        ] {
            check(headers, &body, Some(seconds));
        }
        for (headers, body) in [
            // Over in seconds, or nothing of it is used up, or it says no time.
            (&[("retry-after", "20")][..], message("requests per day")),
            (&[("x-ratelimit-remaining-requests", "3"), ("x-ratelimit-reset-requests", "8h")], String::new()),
            (
                &[
                    ("anthropic-ratelimit-unified-5h-status", "allowed"),
                    ("anthropic-ratelimit-unified-5h-reset", "1795165200"),
                ],
                String::new(),
            ),
            (&[("ratelimit", r#""day";r=7;t=3600"#)], String::new()),
            (&[], google(&retry("34.07s"))),
            (&[], message("Please try again in 20s.")),
            (&[], message("Limit 100 per day, 5 per minute. Slow down.")),
            (&[], message("Too many requests")),
        ] {
            check(headers, &body, None);
        }
    }

    #[test]
    fn an_error_within_an_answer_is_a_limit_where_it_is_named_so() {
        let within = |body: &str| {
            usage_limit(200, &HeaderMap::new(), body.as_bytes(), NOW).map(|at| at.ms_since(NOW) / 1000)
        };
        let failed = |code: &str| {
            format!(
                r#"{{"type":"response.failed","response":{{"error":{{"code":"{code}","message":"Please try again in 1h."}}}}}}"#
            )
        };
        assert_eq!(within(&failed("rate_limit_exceeded")), Some(3600));
        assert_eq!(within(r#"{"error":{"code":429,"message":"retry in 1h"},"choices":[]}"#), Some(3600));
        assert_eq!(
            within(r#"{"type":"error","error":{"type":"rate_limit_error","message":"retry in 1h"}}"#),
            Some(3600)
        );
        assert_eq!(within(&failed("server_error")), None);
    }
}
