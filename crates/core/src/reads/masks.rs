//! Masks that apply to a run.

use crate::{
    run::Masks,
    store::{self, RunView, Store},
};

/// Returns the masks of a run: its own, or else those of the nearest run above it that has some. A child run is part
/// of its parent's work.
pub fn of(store: &dyn Store, view: &RunView) -> Result<Masks, store::Error> {
    let mut masks = view.spec.masks.clone();
    let mut parent = view.run.parent;
    while let (None, Some(no)) = (&masks, parent) {
        let Some(above) = store.run(no)? else { break };
        masks = above.spec.masks;
        parent = above.run.parent;
    }
    Ok(masks.unwrap_or_default())
}
