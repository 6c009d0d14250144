//! What only a step has.

use serde::{Deserialize, Serialize};

use crate::words::id::Seq;

/// What only a step has, and most steps have not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepDetail {
    /// The item or step it was begun in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<Seq>,
    /// Each of its tries is a scope of its own.
    pub retries: bool,
    /// From 1; 0 in a step without retries.
    pub try_no: i64,
    /// Its try before which an earlier one was its last, or 1; 0 in a step without retries.
    #[serde(skip_serializing_if = "is_zero")]
    pub first_try: i64,
    /// It raised, and its next try was to follow: that is no new beginning.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// A person said what came of it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resolved: bool,
    /// It never runs again by itself while its outcome is unknown.
    pub at_most_once: bool,
    /// Answers of its iteration's scope that were made in it, and how many of them the attempt that runs it
    /// has not taken. Once it is done, nobody asks for them again.
    pub answers: i64,
    pub untaken: i64,
}

impl StepDetail {
    /// Tries since it was begun, or since it was given up last: this one counts. 1 in a step without retries.
    pub fn tries(&self) -> i64 {
        (self.try_no - self.first_try).max(0) + 1
    }
}

fn is_zero(n: &i64) -> bool {
    *n == 0
}
