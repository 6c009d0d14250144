//! Short ids of runs that have a name too.

use outlast_core::store::RunView;

/// Number of characters of a generated id, after `run_`, that distinguish it from any other: its time in
/// milliseconds and some of its random bits.
const SHORT: usize = 18;

/// Returns the run's id, shortened if the run has a name and its id was generated. Every command accepts the short id.
pub fn short(view: &RunView) -> String {
    let id = view.run.id.as_str();
    match id.strip_prefix("run_").and_then(|id| id.get(..SHORT)) {
        Some(start) if view.spec.name.is_some() => start.to_owned(),
        _ => id.to_owned(),
    }
}
