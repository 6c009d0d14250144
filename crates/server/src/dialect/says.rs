//! Times in an upstream's headers: how long to wait, and until when.

use http::HeaderMap;
use outlast_core::words::id::Micros;

/// Headers of an upstream's answer, and the time at which they arrived: the source of its rate limits and
/// waits.
#[derive(Clone, Copy)]
pub struct Says<'h> {
    pub headers: &'h HeaderMap,
    /// Time at which the headers arrived, from which relative times count.
    pub now: Micros,
}

impl Says<'_> {
    pub fn text(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok().map(str::trim)
    }

    pub fn after(&self, ms: i64) -> Option<Micros> {
        (ms >= 0).then(|| self.now.plus_ms(ms))
    }

    /// Returns the time in `retry-after-ms`, or in `retry-after` as seconds or a date; `None` without a readable one.
    pub fn retry_after(&self) -> Option<Micros> {
        if let Some(ms) = self.text("retry-after-ms").and_then(|ms| ms.parse::<f64>().ok()) {
            return self.after(whole(ms)?);
        }
        let text = self.text("retry-after")?;
        match seconds(text) {
            Some(ms) => self.after(ms),
            None => http_date(text),
        }
    }

    /// Returns the time in the header `name`, given in Unix seconds or as RFC 3339; `None` without a readable one.
    pub fn moment(&self, name: &str) -> Option<Micros> {
        let text = self.text(name)?;
        match seconds(text) {
            Some(ms) => Some(Micros(ms.checked_mul(1000)?)),
            None => rfc_3339(text),
        }
    }
}

/// Parses seconds, such as `12` or `12.5`, into milliseconds; `None` for any other text.
pub fn seconds(text: &str) -> Option<i64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    whole(text.parse::<f64>().ok().filter(|_| plain)? * 1000.0)
}

/// Parses a span such as `6m0s`, `1h2m3.5s` or `120ms` into milliseconds; `None` for any other text.
pub fn span_ms(text: &str) -> Option<i64> {
    let (mut rest, mut sum) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, tail) = tail.split_at(letters);
        let ms = match unit {
            "d" => 86_400_000.0,
            "h" => 3_600_000.0,
            "m" => 60_000.0,
            "s" => 1000.0,
            "ms" => 1.0,
            _ => return None,
        };
        sum += number.parse::<f64>().ok()? * ms;
        rest = tail;
    }
    whole(sum).filter(|_| !text.is_empty())
}

/// Rounds up to whole milliseconds: a retry that comes too early is refused again.
fn whole(ms: f64) -> Option<i64> {
    (ms.is_finite() && (0.0..1e15).contains(&ms)).then(|| ms.ceil() as i64)
}

/// Parses `2026-11-20T08:00:00Z`. A fraction of a second is dropped.
fn rfc_3339(text: &str) -> Option<Micros> {
    whole_seconds(text.parse().ok()?)
}

/// Parses `Fri, 20 Nov 2026 08:00:00 GMT`.
fn http_date(text: &str) -> Option<Micros> {
    whole_seconds(jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?)
}

/// Drops fractions of a second, and times before 1970, which no limit can name.
fn whole_seconds(at: jiff::Timestamp) -> Option<Micros> {
    (at.as_second() >= 0).then(|| Micros(at.as_second() * 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_moments_are_read_and_nothing_else_is() {
        let spans =
            [("1h2m3.5s", Some(3_723_500)), ("120ms", Some(120)), ("1d", Some(86_400_000)), ("0s", Some(0))];
        for (text, ms) in spans.into_iter().chain(["", "5", "x", "1y", "s", "1h2", "-1s"].map(|t| (t, None)))
        {
            assert_eq!(span_ms(text), ms, "{text:?}");
        }
        for (text, micros) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2026-11-20T08:00:00Z", Some(1_795_161_600_000_000)),
            ("2028-02-29T23:59:59.25Z", Some(1_835_481_599_000_000)),
            ("2026-11-20T08:00:00", None),
            ("2026-13-20T08:00:00Z", None),
            ("2026-11-20", None),
        ] {
            assert_eq!(rfc_3339(text).map(|at| at.0), micros, "{text}");
        }
    }
}
