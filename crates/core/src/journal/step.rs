//! Details of step entries.

use serde::{Deserialize, Serialize};

use super::act::ActDetail;
use crate::words::id::Seq;

/// Details of a step entry. Most steps have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepDetail {
    /// Item or step in which the step was begun; `None` outside of both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<Seq>,
    /// Whether the step was declared with retries: each try then has a scope of its own.
    pub retries: bool,
    /// Number of the current try, from 1; 0 in a step without retries.
    pub try_no: i64,
    /// Number of the first try since the step was begun anew after it was given up, else 1; 0 in a step without
    /// retries.
    #[serde(skip_serializing_if = "is_zero")]
    pub first_try: i64,
    /// Whether the step raised an error and was to be tried again. The next `BeginStep` then continues the count of
    /// tries.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// Whether a person decided the outcome.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resolved: bool,
    /// Whether the step never runs again by itself while its outcome is unknown.
    pub at_most_once: bool,
    /// Number of answers in the iteration's scope that were made in this step. Once the step is done, nobody
    /// asks for them again.
    pub answers: i64,
    /// Part of `answers` that the attempt running the step has not taken yet.
    pub untaken: i64,
    /// Who gave which order, in the entry of an act.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub act: Option<ActDetail>,
}

impl StepDetail {
    /// Returns the number of tries since the step was begun, or begun anew after it was given up, this one
    /// included. Always 1 in a step without retries.
    pub fn tries(&self) -> i64 {
        (self.try_no - self.first_try).max(0) + 1
    }
}

fn is_zero(n: &i64) -> bool {
    *n == 0
}
