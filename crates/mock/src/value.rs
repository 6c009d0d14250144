//! Values that options and a request's `mock:` lines share, parsed from their text.

use std::{str::FromStr, time::Duration};

use http::StatusCode;

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
