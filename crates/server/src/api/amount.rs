//! Amounts as JSON numbers, read and written without floats, so that they stay exact.

use std::collections::BTreeMap;

use outlast_core::{
    envelope::{Limits, Unit},
    words::{NanoUsd, money::decimal},
};
use outlast_view::shape;
use serde_json::value::RawValue;

use crate::state::Error;

/// Parses the JSON number `raw` into units of `10^-decimals`, rounded up. A positive number becomes at least 1.
///
/// Programs write floats such as `0.30000000000000004`, which is read as 0.3 dollars. Errors name `what`: a value is
/// negative, not a number, or too large.
fn read(what: &str, raw: &RawValue, decimals: i64) -> Result<i64, Error> {
    let text = raw.get().trim();
    let mantissa = text.split(['e', 'E']).next().unwrap_or(text);
    if mantissa.bytes().all(|b| matches!(b, b'0' | b'.')) {
        return Ok(0);
    }
    match decimal(text, decimals) {
        Ok(units) => Ok(units.max(1)),
        Err(_) => {
            let had: String = text.chars().take(40).collect();
            Err(Error::BadRequest(format!("budget: {what} is {had}, and a number from 0 is wanted")))
        }
    }
}

/// Limits by name, as RiskKernel's clients send them. 0, null and a missing member mean no limit.
///
/// A map, not a struct, so that numbers are read as they were written and a list is refused.
pub type Budget = BTreeMap<String, Box<RawValue>>;

/// Limits that a budget may name: name, unit, and decimals of the unit.
const LIMITS: [(&str, Unit, i64); 4] = [
    ("tokens", Unit::Tokens, 0),
    ("dollars", Unit::CostNanoUsd, 9),
    ("loops", Unit::Loops, 0),
    ("seconds", Unit::WallMs, 3),
];

/// Returns the limits of a budget. Errors: `bad_request` for a name that is none of them, since a limit that is misspelt
/// would hold for nothing, for a value that is not a number from 0, or that has decimals where only whole numbers make
/// sense.
pub fn limits(budget: &Budget) -> Result<Limits, Error> {
    if let Some(other) = budget.keys().find(|other| LIMITS.iter().all(|(name, ..)| name != other)) {
        let other: String = other.chars().take(80).collect();
        let text = format!("budget: no limit is named {other:?} (wanted tokens, dollars, loops or seconds)");
        return Err(Error::BadRequest(text));
    }
    let mut limits = Limits::default();
    for (name, unit, decimals) in LIMITS {
        let Some(raw) = budget.get(name).filter(|raw| raw.get() != "null") else { continue };
        let limit = read(name, raw, decimals)?;
        if decimals == 0 && raw.get().trim().parse() != Ok(limit) {
            let text = format!("budget: {name} is {raw}, and a whole number is wanted");
            return Err(Error::BadRequest(text));
        }
        limits[unit] = Some(limit).filter(|limit| *limit > 0);
    }
    Ok(limits)
}

shape! {
    /// Limits as RiskKernel's clients read them. 0 means no limit.
    pub ShownBudget(limits: &Limits; let limit = |unit: Unit| limits[unit].unwrap_or(0)) {
        tokens: i64 = limit(Unit::Tokens);
        dollars: Box<RawValue> = dollars(limit(Unit::CostNanoUsd));
        loops: i64 = limit(Unit::Loops);
        seconds: Box<RawValue> = seconds(limit(Unit::WallMs));
    }
}

/// Returns nano-USD as a JSON number of dollars, with at most nine decimals.
pub fn dollars(nano_usd: i64) -> Box<RawValue> {
    number(NanoUsd(nano_usd).to_string())
}

/// Returns milliseconds as a JSON number of seconds, with decimals only where needed.
pub fn seconds(ms: i64) -> Box<RawValue> {
    let (whole, rest) = (ms / 1000, ms.rem_euclid(1000));
    let text = if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:03}") };
    number(text)
}

fn number(text: String) -> Box<RawValue> {
    // Digits with a point between them are a JSON number.
    RawValue::from_string(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_are_read_as_they_are_written() {
        let check = |text: &str, want: Option<i64>| {
            let raw = RawValue::from_string(text.into()).unwrap();
            assert_eq!(read("budget.dollars", &raw, 9).ok(), want, "{text}");
        };
        check("0.25", Some(250_000_000));
        check("5", Some(5_000_000_000));
        check("5.0", Some(5_000_000_000));
        check("0.25000000000000006", Some(250_000_000));
        check("0.30000000000000004", Some(300_000_000));
        check("0.29999999999999998889776975", Some(300_000_000));
        check("1e-05", Some(10_000));
        check("2.5E+2", Some(250_000_000_000));
        check("1234567.000000001", Some(1_234_567_000_000_001));
        check("0", Some(0));
        check("0.0", Some(0));
        check("0e99999999999999999999", Some(0));
        // Not 0, which would mean no limit.
        check("1e-12", Some(1));
        check("1e-400", Some(1));
        check("-1", None);
        check("-0.0", None);
        check("1e30", None);
        check("1e999999999999999999999", None);
        check("99999999999", None);
        check("\"5\"", None);
        check("true", None);
        check("[1]", None);
    }

    #[test]
    fn amounts_are_written_exactly() {
        let check = |had: Box<RawValue>, want: &str| assert_eq!(had.get(), want);
        check(dollars(250_000_000), "0.25");
        check(dollars(0), "0.00");
        check(dollars(450_001), "0.000450001");
        check(seconds(3_600_000), "3600");
        check(seconds(1_500), "1.500");
    }
}
