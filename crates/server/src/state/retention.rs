//! How many versions a namespace keeps: said, and then done for the keys that nobody changes.

use outlast_core::{
    engine::state::{compact::Compact, retain::Retain},
    store::{Ask as _, Durability, Error, Store},
};

/// Says what is kept, and removes what is not, piece by piece: other writers come in between.
///
/// Returns how many versions that removed. What is written later is cut by its own commit, so that a removal which
/// was interrupted leaves only keys that do not change.
pub fn retain(store: &dyn Store, retain: Retain) -> Result<i64, Error> {
    let namespace = retain.namespace.clone();
    store.run_verb(retain, Durability::Synced)?;
    let (mut removed, mut after) = (0, Some(0));
    while let Some(from) = after {
        let piece = Compact { namespace: namespace.clone(), before: None, after: from };
        let done = store.run_verb(piece, Durability::Committed)?;
        removed += done.removed;
        after = done.next;
    }
    Ok(removed)
}
