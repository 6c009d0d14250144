//! Work of a run that called no model, in words.

use outlast_core::{
    engine::checkpoint::OURS,
    journal::{Entry, Kind},
    run::Attempt,
};

use super::amount::some;

/// Kinds of entries that are a run's own work, with their words. Items are told by their job: an item may have several.
const WORK: [(Kind, &str); 4] = [
    (Kind::Tool, "tool call"),
    (Kind::Step, "step"),
    (Kind::Approval, "approval"),
    (Kind::Checkpoint, "checkpoint"),
];

/// Entries that a run's work left: how many of each kind of [`WORK`], and whether it called a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Did {
    /// Whether a model's call is among the entries, though it may have cost nothing.
    pub has_called: bool,
    /// Code and message of the proxy's refusal, if it let no call of the newest attempt through.
    pub refused: Option<String>,
    counts: [i64; WORK.len()],
}

impl Did {
    /// Sums up a run's entries, and how its newest attempt ended.
    pub fn of(entries: &[Entry], newest: Option<&Attempt>) -> Did {
        let refused = newest.and_then(|attempt| attempt.exit.as_ref()?.refused.clone());
        let mut did = Did { refused, ..Did::default() };
        entries.iter().for_each(|entry| did.add(entry));
        did
    }

    /// Counts an entry. Orders of people and what Outlast kept for itself are no work.
    pub fn add(&mut self, entry: &Entry) {
        self.has_called |= entry.kind == Kind::Call;
        if !entry.key.as_deref().is_some_and(|key| key.starts_with(OURS)) {
            let counts = WORK.iter().zip(&mut self.counts);
            counts.filter(|((kind, _), _)| *kind == entry.kind).for_each(|(_, count)| *count += 1);
        }
    }

    /// Returns what the entries record besides calls of models, as in `12 tool calls, 3 steps`; `None` if they record
    /// nothing of the kind.
    pub fn words(&self) -> Option<String> {
        let told = WORK.iter().zip(self.counts).filter(|(_, n)| *n > 0);
        let told: Vec<String> = told.map(|((_, word), n)| some(n, word)).collect();
        (!told.is_empty()).then(|| told.join(", "))
    }
}
