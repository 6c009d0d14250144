//! Checkpoints that agents have saved.

use crate::{
    engine::checkpoint::OURS,
    journal::{Entry, Kind},
    store::{self, Store},
    words::{RunNo, Seq},
};

/// Number of entries in the first look back for a checkpoint. An agent that saves checkpoints does so often.
const LOOK: i64 = 64;

/// Returns the newest checkpoint that an agent saved in a run, whatever its name; `None` without one.
///
/// Outlast's own checkpoints are skipped. The time grows with the number of entries after the checkpoint.
pub fn newest_saved(store: &dyn Store, run: RunNo) -> Result<Option<Entry>, store::Error> {
    let Some(view) = store.run(run)? else { return Ok(None) };
    let saved = |e: &Entry| {
        e.kind == Kind::Checkpoint && !e.key.as_deref().is_some_and(|name| name.starts_with(OURS))
    };
    let (mut end, mut look) = (view.run.next_seq.0, LOOK);
    while end > 1 {
        let begin = (end - look).max(1);
        let limit = usize::try_from(end - begin).unwrap_or(usize::MAX);
        let page = store.entries(run, Seq(begin - 1), limit)?;
        if let Some(found) = page.into_iter().rev().find(saved) {
            return Ok(Some(found));
        }
        (end, look) = (begin, (look * 2).min(1 << 12));
    }
    Ok(None)
}
