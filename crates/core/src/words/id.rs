//! Ids and numbers. Each is a type of its own, so that a run number is never passed where a fence is meant.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{stored_as_text, words::BadText};

/// Id of a run as people type it: the caller's own, or `run_<uuidv7>`.
///
/// 1 to 128 characters of `[A-Za-z0-9._:-]`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(Arc<str>);

impl RunId {
    /// Checks and wraps `text`.
    pub fn new(text: &str) -> Result<Self, BadText> {
        let ok = (1..=128).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b));
        match ok {
            true => Ok(Self(text.into())),
            false => Err(BadText::new("a run id", text, "1 to 128 of A-Z a-z 0-9 . _ : -")),
        }
    }

    /// Makes `run_<uuidv7>` from a time and 10 bytes of entropy. The ids sort by creation.
    pub fn generate(now: Micros, entropy: [u8; 10]) -> Self {
        Self(format!("run_{}", uuid_v7(now, entropy)).into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for RunId {
    type Err = BadText;
    fn from_str(s: &str) -> Result<Self, BadText> {
        Self::new(s)
    }
}

stored_as_text!(RunId);

/// Formats a UUID of version 7: 48 bits of milliseconds, then entropy.
pub fn uuid_v7(now: Micros, entropy: [u8; 10]) -> String {
    let ms = (now.0.max(0) as u64 / 1000) & 0xffff_ffff_ffff;
    let [a, b, c, d, e, f, g, h, i, j] = entropy;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        ms >> 16,
        ms & 0xffff,
        0x7000 | (u16::from_be_bytes([a, b]) & 0x0fff),
        0x8000 | (u16::from_be_bytes([c, d]) & 0x3fff),
        u64::from_be_bytes([0, 0, e, f, g, h, i, j])
    )
}

/// Time in microseconds since the Unix epoch, as the store's clock gave it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Micros(pub i64);

impl Micros {
    /// Returns the whole milliseconds from `earlier` to this time; zero if the clock went back.
    pub fn ms_since(self, earlier: Micros) -> i64 {
        ((self.0 - earlier.0) / 1000).max(0)
    }

    /// Returns this time plus `ms` milliseconds, saturating.
    pub fn plus_ms(self, ms: i64) -> Micros {
        Micros(self.0.saturating_add(ms.saturating_mul(1000)))
    }
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident,)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub i64);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

numbers! {
    /// A run's number in its store, which is the key of all its rows: its text id is stored only once.
    RunNo,
    /// An instance's number in its store.
    InstanceNo,
    /// An envelope's number in its store: also the order in which envelopes are locked.
    EnvelopeNo,
    /// A named budget's number in its store.
    BudgetNo,
    /// An entry's place in its run's journal, from 1.
    Seq,
    /// Number of an operation. No two operations of a store have the same: each process counts from a start of its own.
    OpNo,
    /// An attempt's number within its run, from 1.
    AttemptNo,
    /// Place of a driver in a run: 0 is the exclusive driver's, batch workers have others, from 1.
    Slot,
    /// Number of one driver's turn in a slot. Each new lease gets a higher one, and an older one opens nothing.
    Fence,
}

impl Slot {
    /// Slot of the exclusive driver.
    pub const DRIVER: Slot = Slot(0);
    /// Slot of the one implicit, unfenced attempt that HTTP callers share which name no attempt in a header.
    pub const IMPLICIT: Slot = Slot(-1);
    /// In a claim: the lowest free worker's slot, from 1.
    pub const ANY: Slot = Slot(-2);
    /// Slot of the lease of a process that has adopted an attempt: it acts in the attempt, which a supervisor drives.
    pub const ADOPTER: Slot = Slot(-3);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ids_accept_the_documented_characters_only() {
        for good in ["a", "research-42", "run_0190.A:b", &"x".repeat(128)] {
            assert!(RunId::new(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a/b", "é", "a\n", &"x".repeat(129)] {
            assert!(RunId::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn generated_ids_sort_by_time_and_are_version_7() {
        let a = RunId::generate(Micros(1_000_000), [255; 10]);
        let b = RunId::generate(Micros(2_000_000), [0; 10]);
        assert!(a < b);
        assert_eq!(a.as_str().len(), 40);
        assert_eq!(&a.as_str()[18..19], "7");
    }
}
