//! Money is integer: nano-dollars for amounts, pico-dollars per token for prices.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::words::BadText;

/// An amount in billionths of a US dollar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NanoUsd(pub i64);

impl NanoUsd {
    pub const ZERO: NanoUsd = NanoUsd(0);
    pub const MAX: NanoUsd = NanoUsd(i64::MAX);

    /// Reads decimal dollars exactly: `0.25`, `5`, at most nine decimals, not negative.
    pub fn parse(text: &str) -> Result<Self, BadText> {
        let bad = || BadText::new("an amount in usd", text, "for example 5, 0.25 or 12.000000001");
        let t = text.strip_prefix('$').unwrap_or(text);
        let (whole, frac) = t.split_once('.').unwrap_or((t, ""));
        let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if (whole.is_empty() && frac.is_empty()) || !digits(whole) || !digits(frac) || frac.len() > 9 {
            return Err(bad());
        }
        let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| bad())? };
        let nanos: i64 =
            if frac.is_empty() { 0 } else { format!("{frac:0<9}").parse().map_err(|_| bad())? };
        whole.checked_mul(1_000_000_000).and_then(|w| w.checked_add(nanos)).map(NanoUsd).ok_or_else(bad)
    }
}

/// Formats dollars with at least two and at most nine decimals: `0.25`, `0.000123`.
impl fmt::Display for NanoUsd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let n = self.0.unsigned_abs();
        let frac = format!("{:09}", n % 1_000_000_000);
        let kept = frac.trim_end_matches('0').len().max(2);
        f.pad(&format!("{sign}{}.{}", n / 1_000_000_000, &frac[..kept]))
    }
}

/// A price in trillionths of a US dollar per token: 6 USD per million tokens is 6,000,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PicoUsdPerToken(pub i64);

impl PicoUsdPerToken {
    /// Returns the price of `tokens` in pico-dollars, so that sums round once and not per column.
    pub fn times(self, tokens: u64) -> i128 {
        i128::from(self.0) * i128::from(tokens)
    }
}

/// Rounds a sum in pico-dollars up to nano-dollars: a fraction is never free.
pub fn nano_from_pico(pico: i128) -> NanoUsd {
    let nano = pico.div_euclid(1000) + i128::from(pico.rem_euclid(1000) != 0);
    NanoUsd(i64::try_from(nano).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_are_read_and_shown_exactly() {
        for (text, nano, shown) in [
            ("0.25", 250_000_000, "0.25"),
            ("5", 5_000_000_000, "5.00"),
            ("$1.5", 1_500_000_000, "1.50"),
            ("0.000000001", 1, "0.000000001"),
            (".5", 500_000_000, "0.50"),
        ] {
            let n = NanoUsd::parse(text).expect(text);
            assert_eq!((n.0, n.to_string().as_str()), (nano, shown));
        }
        for bad in ["", ".", "-1", "1e3", "0.0000000001", "5 usd", "99999999999"] {
            assert!(NanoUsd::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_fraction_of_a_nano_dollar_is_never_free() {
        assert_eq!(nano_from_pico(1), NanoUsd(1));
        assert_eq!(nano_from_pico(1000), NanoUsd(1));
        assert_eq!(nano_from_pico(1001), NanoUsd(2));
    }
}
