//! Edges: which envelopes the runs of a store are charged to, remembered from one transaction to the next.
//!
//! Edges only say what to fetch and to lock early. A number that was given in a group that rolled back is given again,
//! and a named budget opens another window: so the rows decide what is true, and whoever locks by edges compares them.

use std::sync::Arc;

use crate::{
    engine::Loaded,
    run::Run,
    words::{BudgetNo, EnvelopeNo, Map, Micros, RunNo},
};

/// Cache of the edges that a process has seen.
#[derive(Default)]
pub struct Edges {
    runs: Map<RunNo, Edge>,
    /// Envelopes of the budgets' newest and current windows.
    windows: Map<BudgetNo, Vec<EnvelopeNo>>,
}

/// Rows that a run leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The run's own envelope first, then its ancestors'.
    pub charges: Arc<[EnvelopeNo]>,
    pub budgets: Arc<[BudgetNo]>,
    /// Whether the run shares entries with the runs that it was forked from.
    pub is_fork: bool,
}

/// Largest number of runs in the cache. Beyond it all edges are dropped: simpler than eviction by age, and rare.
const MOST: usize = 4096;

impl Edges {
    pub fn run(&self, no: RunNo) -> Option<&Edge> {
        self.runs.get(&no)
    }

    /// Returns the envelopes of the budgets' newest and current windows.
    pub fn windows(&self, budgets: &[BudgetNo]) -> impl Iterator<Item = EnvelopeNo> {
        budgets.iter().filter_map(|no| self.windows.get(no)).flatten().copied()
    }

    /// Remembers to which other rows the rows of an operation lead.
    pub fn learn(&mut self, l: &Loaded, now: Micros) {
        if self.runs.len() + l.runs.len() > MOST || self.windows.len() + l.budgets.len() > MOST {
            *self = Edges::default();
        }
        for Run { no, charges, budgets, origins, .. } in l.runs.iter().map(|row| &row.value) {
            let (charges, budgets) = (charges.clone(), budgets.clone());
            self.runs.insert(*no, Edge { charges, budgets, is_fork: !origins.is_empty() });
        }
        for budget in l.budgets.iter().map(|row| &row.value) {
            let windows = [budget.window, budget.current(now)].into_iter().flatten();
            self.windows.insert(budget.no, windows.map(|w| w.envelope).collect());
        }
    }
}
