//! Busy waiting: calls that brought their agent nothing new, as the proxy judged them when they were made.

use super::prelude::*;

/// Smallest number of calls for which the line is printed.
const FEWEST: i64 = 5;

/// Calls that brought nothing new, and their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyWaiting {
    pub calls: i64,
    pub cost_nano_usd: i64,
    /// Number of them in the longest row.
    pub longest: i64,
}

impl BusyWaiting {
    /// Adds an entry, if it is a call that brought nothing new.
    pub fn add(&mut self, e: &Entry) {
        let waits = e.call.as_ref().map_or(0, |call| i64::from(call.waits));
        if waits > 0 {
            self.calls += 1;
            self.cost_nano_usd = self.cost_nano_usd.saturating_add(e.spent.cost());
            self.longest = self.longest.max(waits);
        }
    }

    /// Returns the line about busy waiting for `outlast show`; `None` if only a few calls brought nothing new.
    pub fn line(&self) -> Option<String> {
        let (calls, cost) = (some(self.calls, "call"), usd(self.cost_nano_usd));
        (self.calls >= FEWEST).then(|| {
            format!("waited    {cost} usd for {calls} that brought nothing new, {} in a row", self.longest)
        })
    }
}
