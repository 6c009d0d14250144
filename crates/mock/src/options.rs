//! Options of the fake provider, as `outlast mock` takes them from its command line.
//!
//! Rate limit of the fake provider: a bucket of calls, which fills at a steady rate.
//!
//! `--rate-limit 20/s,40`: 20 calls flow into it each second, up to 40. A call that finds the bucket empty is refused with 429, and
//! with the time until the next one as `retry-after`, in whole seconds.
//!
//! Values that options and a request's `mock:` lines share, parsed from their text.

use std::{path::PathBuf, str::FromStr, time::Duration};

use http::StatusCode;
use tokio::time::Instant;

use crate::{outage::Outages, plan::Window};

/// Behaviour of the provider towards every request. A request's own `mock:` lines take precedence.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Time to the first byte of a paid answer. Each further frame of a stream follows after a twentieth of this time.
    pub latency: Duration,
    /// Usage of each call; `None`: usage follows from the bytes of request and answer.
    pub usage: Option<FixedUsage>,
    /// Compression of answers for clients that accept it; `None`: answers are not compressed.
    pub encoding: Option<Encoding>,
    /// Random refusals, which cost nothing. One draw decides among them: probabilities beyond a sum of 1 do nothing.
    pub fail: Vec<Failure>,
    /// Seed that decides which requests `fail` hits: the same seed hits the same places in a sequence of
    /// requests.
    pub seed: u64,
    /// Rate at which calls are taken; `None`: no limit.
    pub rate_limit: Option<RateLimit>,
    /// Phases of good and bad health, one after another from the provider's start.
    pub outages: Outages,
    /// Windows of the plan that all calls are on. None: calls are on no plan.
    pub plan: Vec<Window>,
    /// File to which one JSON line is appended for each paid request.
    pub log: Option<PathBuf>,
}

/// A content encoding of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Gzip,
}

impl FromStr for Encoding {
    type Err = BadOption;
    fn from_str(text: &str) -> Result<Self, BadOption> {
        match text {
            "gzip" => Ok(Self::Gzip),
            _ => Err(BadOption::new("an encoding of answers (gzip)", text)),
        }
    }
}

/// A random refusal, as `STATUS:PROBABILITY`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failure {
    /// HTTP status of the refusal, 400 to 599.
    pub status: StatusCode,
    /// Probability of the refusal, 0 to 1.
    pub probability: f64,
}

impl FromStr for Failure {
    type Err = BadOption;
    fn from_str(text: &str) -> Result<Self, BadOption> {
        let pair = || {
            let (status, probability) = text.split_once(':')?;
            let probability = probability.trim().parse().ok().filter(|p| (0.0..=1.0).contains(p))?;
            Some(Self { status: error_status(status)?, probability })
        };
        pair().ok_or_else(|| BadOption::new("STATUS:PROBABILITY, such as 429:0.1", text))
    }
}

impl Options {
    /// Returns the HTTP status with which the provider refuses request number `count` by chance; `None` if it does not.
    pub(super) fn failure(&self, count: u64) -> Option<StatusCode> {
        if self.fail.is_empty() {
            return None;
        }
        // A double holds 53 bits exactly.
        let mut drawn = (mix(self.seed, count) >> 11) as f64 / (1u64 << 53) as f64;
        for failure in &self.fail {
            if drawn < failure.probability {
                return Some(failure.status);
            }
            drawn -= failure.probability;
        }
        None
    }
}

/// Returns SplitMix64's output at position `count` of the sequence that `seed` starts.
fn mix(seed: u64, count: u64) -> u64 {
    let mut z = seed.wrapping_add(count.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Rate limit of all calls together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    per_s: f64,
    most: f64,
}

impl FromStr for RateLimit {
    type Err = BadOption;
    fn from_str(text: &str) -> Result<RateLimit, BadOption> {
        let read = || {
            let (per_s, most) = text.split_once("/s,")?;
            let (per_s, most) = (per_s.trim().parse().ok()?, most.trim().parse().ok()?);
            let is_one = |number: f64, least: f64| number.is_finite() && number >= least;
            (is_one(per_s, 0.001) && is_one(most, 1.0)).then_some(RateLimit { per_s, most })
        };
        read().ok_or_else(|| BadOption::new("calls a second and the most at once, such as 20/s,40", text))
    }
}

/// Bucket with the calls that are left of a rate limit.
pub(super) struct Bucket {
    limit: RateLimit,
    left: f64,
    at: Instant,
}

impl Bucket {
    /// Makes a full bucket.
    pub fn full(limit: RateLimit) -> Bucket {
        Bucket { limit, left: limit.most, at: Instant::now() }
    }

    /// Takes a call out of the bucket. The error is the time until there is one.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let filled = self.limit.per_s * (now - self.at).as_secs_f64();
        (self.left, self.at) = ((self.left + filled).min(self.limit.most), now);
        if self.left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - self.left) / self.limit.per_s));
        }
        self.left -= 1.0;
        Ok(())
    }
}

/// Error for an option's text that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not {wanted}: {text:?}")]
pub struct BadOption {
    pub wanted: &'static str,
    pub text: String,
}

impl BadOption {
    pub(super) fn new(wanted: &'static str, text: &str) -> Self {
        Self { wanted, text: text.into() }
    }
}

/// Fixed usage of every call, as `INPUT,OUTPUT`.
///
/// The input includes cached tokens. The output, reasoning included, is that of one choice, and stays within
/// the request's own cap, as a provider's does; only a request's `mock: usage` line bills past it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedUsage {
    pub input: u64,
    pub output: u64,
}

impl FromStr for FixedUsage {
    type Err = BadOption;
    fn from_str(text: &str) -> Result<Self, BadOption> {
        let pair = || {
            let (input, output) = text.split_once(',')?;
            Some(Self { input: input.trim().parse().ok()?, output: output.trim().parse().ok()? })
        };
        pair().ok_or_else(|| BadOption::new("INPUT,OUTPUT in tokens, such as 1000,500", text))
    }
}

/// Parses the HTTP status of a refusal; `None` for a text that is not 400 to 599.
pub(super) fn error_status(text: &str) -> Option<StatusCode> {
    let status = StatusCode::from_bytes(text.trim().as_bytes()).ok()?;
    (status.is_client_error() || status.is_server_error()).then_some(status)
}

/// Parses a duration such as `300ms`, `2s` or `0`.
pub fn duration(text: &str) -> Result<Duration, BadOption> {
    let parse = |number: &str| number.trim().parse().ok();
    let found = match text.strip_suffix("ms") {
        Some(number) => parse(number).map(Duration::from_millis),
        None => match text.strip_suffix('s') {
            Some(number) => parse(number).map(Duration::from_secs),
            None => (text == "0").then_some(Duration::ZERO),
        },
    };
    found.ok_or_else(|| BadOption::new("a time, such as 300ms or 2s", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_from_their_text() {
        assert_eq!("gzip".parse(), Ok(Encoding::Gzip));
        let limited = Failure { status: StatusCode::TOO_MANY_REQUESTS, probability: 0.1 };
        assert_eq!("429:0.1".parse(), Ok(limited));
    }

    #[test]
    fn what_an_option_does_not_mean_is_refused() {
        for text in ["", "429", "200:0.5", "429:1.5", "429:-1", "429:NaN", "600:0.1"] {
            assert!(text.parse::<Failure>().is_err(), "{text}");
        }
        let error = "br".parse::<Encoding>().unwrap_err();
        assert_eq!(error.to_string(), r#"not an encoding of answers (gzip): "br""#);
    }

    #[test]
    fn failures_come_at_their_probability_and_at_the_same_places_for_a_seed() {
        let fail = vec!["429:0.1".parse().unwrap(), "500:0.2".parse().unwrap()];
        let options = Options { fail, seed: 7, ..Options::default() };
        let drawn = |options: &Options| (0..10_000).map(|n| options.failure(n)).collect::<Vec<_>>();
        let count = |status: u16| drawn(&options).iter().flatten().filter(|s| s.as_u16() == status).count();
        assert!((900..1100).contains(&count(429)), "{}", count(429));
        assert!((1850..2150).contains(&count(500)), "{}", count(500));
        assert_eq!(drawn(&options), drawn(&options));
        assert_ne!(drawn(&options), drawn(&Options { seed: 8, ..options.clone() }));
    }

    #[test]
    fn a_bucket_gives_what_it_holds_and_then_what_flows_into_it() {
        let mut bucket = Bucket::full("4/s,2".parse().unwrap());
        let began = bucket.at;
        let mut after = |ms| bucket.take(began + Duration::from_millis(ms));
        assert_eq!([after(0), after(0), after(0)], [Ok(()), Ok(()), Err(Duration::from_millis(250))]);
        assert_eq!((after(125), after(250)), (Err(Duration::from_millis(125)), Ok(())));
        assert_eq!(
            [after(9_000), after(9_000), after(9_000)],
            [Ok(()), Ok(()), Err(Duration::from_millis(250))]
        );
    }

    #[test]
    fn a_text_that_is_no_rate_limit_is_refused() {
        for text in ["", "20", "20/s", "0/s,1", "20/s,0", "inf/s,1", "-1/s,4", "1/s,nan"] {
            assert!(text.parse::<RateLimit>().is_err(), "{text}");
        }
    }

    #[test]
    fn values_are_read_from_their_text() {
        assert_eq!("1000,500".parse(), Ok(FixedUsage { input: 1000, output: 500 }));
        assert_eq!(duration("300ms"), Ok(Duration::from_millis(300)));
        assert_eq!(duration("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn what_a_value_does_not_mean_is_refused() {
        for text in ["", "1000", "1000,", "-1,2", "1,2,3"] {
            assert!(text.parse::<FixedUsage>().is_err(), "{text}");
        }
        for text in ["", "3", "3m", "-1s", "ms"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
