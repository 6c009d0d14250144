//! Rate limit of the fake provider: a bucket of calls, which fills at a steady rate.
//!
//! `--rate-limit 20/s,40`: 20 calls flow into it each second, up to 40. A call that finds the bucket empty is refused with 429, and
//! with the time until the next one as `retry-after`, in whole seconds.

use std::{str::FromStr, time::Duration};

use tokio::time::Instant;

use crate::value::BadOption;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
