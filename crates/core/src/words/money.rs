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
        let is_exact = t.split_once('.').is_none_or(|(_, frac)| frac.len() <= 9);
        if !is_exact || !t.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return Err(bad());
        }
        decimal(t, 9).map(NanoUsd).map_err(|_| bad())
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

/// Reason why a text is no amount.
#[derive(Debug, PartialEq, Eq)]
pub enum BadDecimal {
    Syntax,
    Negative,
    Overflow,
}

/// Parses a number as it is written in JSON, such as `0.00045` or `1.5e-7`, into units of `10^-decimals`, rounded up if
/// not exact.
///
/// A remainder below a millionth of a unit is float noise (as in `1.0000000000000001e-07`) and is dropped.
pub fn decimal(text: &str, decimals: i64) -> Result<i64, BadDecimal> {
    let (unsigned, negative) = text.strip_prefix('-').map_or((text, false), |rest| (rest, true));
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(BadDecimal::Syntax);
    }
    let exponent: i32 = exponent.parse().map_err(|_| BadDecimal::Syntax)?;
    if negative {
        return Err(BadDecimal::Negative);
    }
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    // Digits beyond the 30th cannot be told from noise, unless the number is far too large anyway.
    let kept = &digits[..digits.len().min(30)];
    let cut = (digits.len() - kept.len()) as i64;
    let shift = i64::from(exponent) - fraction.len() as i64 + cut + decimals;
    let number: i128 = kept.parse().map_err(|_| BadDecimal::Syntax)?;
    let units = if shift >= 0 {
        let factor = u32::try_from(shift).ok().and_then(|s| 10_i128.checked_pow(s));
        factor.and_then(|f| number.checked_mul(f)).ok_or(BadDecimal::Overflow)?
    } else {
        match u32::try_from(-shift).ok().and_then(|s| 10_i128.checked_pow(s)) {
            Some(unit) => number / unit + i128::from(number % unit > unit / 1_000_000),
            // Under 10^30 units of under 10^-38: nothing.
            None => 0,
        }
    };
    i64::try_from(units).map_err(|_| BadDecimal::Overflow)
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
