//! Parsing of decimal dollars in a price file.

/// Reason why a text is no price.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadDecimal {
    Syntax,
    Negative,
    Overflow,
}

/// Parses decimal USD into whole pico-USD, rounded up if not exact.
///
/// A remainder below a millionth of a pico-dollar is float noise (as in `1.0000000000000001e-07`) and is
/// dropped.
pub(super) fn pico_usd(text: &str) -> Result<i64, BadDecimal> {
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
    let shift = i64::from(exponent) - fraction.len() as i64 + cut + 12;
    let number: i128 = kept.parse().map_err(|_| BadDecimal::Syntax)?;
    let pico = if shift >= 0 {
        let factor = u32::try_from(shift).ok().and_then(|s| 10_i128.checked_pow(s));
        factor.and_then(|f| number.checked_mul(f)).ok_or(BadDecimal::Overflow)?
    } else {
        match u32::try_from(-shift).ok().and_then(|s| 10_i128.checked_pow(s)) {
            Some(unit) => number / unit + i128::from(number % unit > unit / 1_000_000),
            // Under 10^30 units of under 10^-38: nothing.
            None => 0,
        }
    };
    i64::try_from(pico).map_err(|_| BadDecimal::Overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_read_exactly() {
        for (text, pico) in [
            ("0", 0),
            ("0.0", 0),
            ("0e400", 0),
            ("1.5e-07", 150_000),
            ("0.00000015", 150_000),
            ("1.5E-7", 150_000),
            ("15e-8", 150_000),
            ("2e-6", 2_000_000),
            ("1", 1_000_000_000_000),
            ("1e+2", 100_000_000_000_000),
            // Floats' noise, both ways.
            ("1.0000000000000001e-07", 100_000),
            ("9.999999999999999e-08", 100_000),
            // A true fraction of a pico-dollar is never free.
            ("1.41953125e-07", 141_954),
            ("1e-13", 1),
            ("1e-500", 0),
            ("0.00000015000000000000000000000000000000000000001", 150_000),
        ] {
            assert_eq!(pico_usd(text), Ok(pico), "{text}");
        }
        for bad in ["", ".", "e5", "1e", "0x1", "1,5", "1 ", "+1", "nan", "1e99999999999", "true", "null"] {
            assert_eq!(pico_usd(bad), Err(BadDecimal::Syntax), "{bad}");
        }
        assert_eq!(pico_usd("-1e-7"), Err(BadDecimal::Negative));
        assert_eq!(pico_usd("1e300"), Err(BadDecimal::Overflow));
        assert_eq!(pico_usd("9999999999"), Err(BadDecimal::Overflow));
        assert_eq!(pico_usd(&"9".repeat(500)), Err(BadDecimal::Overflow));
    }
}
