//! Times in JSON.

use outlast_core::words::{
    Micros,
    calendar::{parse_rfc3339, rfc3339},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Moment that is written as `2026-11-20T08:00:00.000000Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Micros);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&rfc3339(self.0))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        let text = String::deserialize(from)?;
        let wanted =
            || D::Error::custom(format!("{text:?} is no time (wanted for example 2026-11-20T08:00:00Z)"));
        parse_rfc3339(&text).map(Time).ok_or_else(wanted)
    }
}
