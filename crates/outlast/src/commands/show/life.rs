//! Lives: attempts as the tables show them, those of one outage in one row.

use outlast_core::words::outage::Outage;

use super::super::prelude::*;

/// Row of a table of attempts: one attempt, or several in a row that ended in the same outage of a provider. Not empty.
pub struct Life<'a>(pub &'a [Attempt]);

impl<'a> Life<'a> {
    /// Groups a run's attempts, given oldest first, into rows.
    pub fn fold(attempts: &'a [Attempt]) -> Vec<Life<'a>> {
        attempts.chunk_by(|a, b| outage(a).is_some() && outage(a) == outage(b)).map(Life).collect()
    }

    pub fn first(&self) -> &'a Attempt {
        &self.0[0]
    }

    pub fn last(&self) -> &'a Attempt {
        &self.0[self.0.len() - 1]
    }

    /// Returns the numbers of the row's attempts, as `@3` or `@3 to @9`.
    pub fn name(&self) -> String {
        match self.0 {
            [only] => format!("@{}", only.no),
            _ => format!("@{} to @{}", self.first().no, self.last().no),
        }
    }

    /// Returns the time for which the attempts ran, in milliseconds, without the pauses between them.
    pub fn up_ms(&self, now: Micros) -> i64 {
        self.0.iter().map(|a| a.ended_at.unwrap_or(now).ms_since(a.started_at)).sum()
    }
}

fn outage(attempt: &Attempt) -> Option<&Outage> {
    attempt.exit.as_ref()?.outage.as_ref()
}
