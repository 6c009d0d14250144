//! Work of a run that called no model, in words.

use outlast_core::{
    engine::step::checkpoint::OURS,
    journal::{Entry, Kind},
};

use super::amount::some;

/// Kinds of entries that are a run's own work, with their words.
const WORK: [(Kind, &str); 5] = [
    (Kind::Tool, "tool call"),
    (Kind::Step, "step"),
    (Kind::Item, "item"),
    (Kind::Approval, "approval"),
    (Kind::Checkpoint, "checkpoint"),
];

/// Returns what the entries record besides calls of models, as in `12 tool calls, 3 steps`; `None` if they record nothing
/// of the kind. Orders of people and what Outlast kept for itself are no work.
pub fn words(entries: &[Entry]) -> Option<String> {
    let is_ours = |e: &Entry| e.key.as_deref().is_some_and(|key| key.starts_with(OURS));
    let count = |kind: Kind| entries.iter().filter(|e| e.kind == kind && !is_ours(e)).count();
    let told = WORK.into_iter().map(|(kind, word)| (count(kind), word)).filter(|(n, _)| *n > 0);
    let told: Vec<String> = told.map(|(n, word)| some(n as i64, word)).collect();
    (!told.is_empty()).then(|| told.join(", "))
}
