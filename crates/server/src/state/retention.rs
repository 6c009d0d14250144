//! Retention: sets how many versions a namespace keeps, and removes the surplus from keys that nobody changes.

use outlast_core::{
    engine::{Compact, Retain},
    store::{Ask as _, Durability, Error, Store},
};

/// Sets how many versions a namespace keeps, and removes older ones in batches, between which other writers commit.
///
/// Returns the number of versions removed. A later write to a key removes its surplus too, so an interrupted removal
/// leaves a surplus only on keys that do not change.
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
