//! Options of the fake provider, as `outlast mock` takes them from its command line.

use std::{path::PathBuf, str::FromStr, time::Duration};

use http::StatusCode;

use super::{
    outage::Outages,
    plan::Window,
    rate_limit::RateLimit,
    value::{BadOption, FixedUsage, error_status},
};

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
}
