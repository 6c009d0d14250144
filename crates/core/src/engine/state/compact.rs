//! Compact: removes versions that a namespace does not keep, one piece at a time.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
    },
    state::{
        Retention,
        rows::{Compactable, Removal, Trimmed},
    },
    words::id::Micros,
};

/// Number of keys that one piece looks at. Other operations wait while a piece commits.
const KEYS: usize = 256;

/// Largest number of versions that one piece of a compaction removes.
const VERSIONS: i64 = 1024;

/// Removes old versions of a limited number (a piece) of a namespace's keys.
///
/// Removes the versions that the namespace's `Retention` does not keep, and with `before` also those replaced at or
/// before that commit. A key's newest version is never removed, so a tombstone stays too. Begin with `after` 0 and
/// continue with the returned `next` until it is `None`.
#[derive(Clone, Debug)]
pub struct Compact {
    pub namespace: String,
    pub before: Option<i64>,
    pub after: i64,
}

/// Result of compacting one piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Number of versions removed.
    pub removed: i64,
    /// Key number after which the next piece begins; `None` when this was the last.
    pub next: Option<i64>,
}

impl Compact {
    pub fn needs(&self) -> Vec<Need> {
        vec![
            Need::Namespace(self.namespace.clone()),
            Need::Compactable {
                namespace: self.namespace.clone(),
                before: self.before,
                after: self.after,
                limit: KEYS,
            },
        ]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<Compacted, Error> {
        let Some(namespace) = l.state.namespaces.get(&self.namespace) else {
            return Ok(Compacted::default());
        };
        let keep = namespace.value.keep;
        let mut piece = Compacted::default();
        let mut removals = Vec::new();
        for key in &l.state.compactable {
            let below = self.below(keep, key).min(key.oldest + (VERSIONS - piece.removed));
            if below > key.oldest {
                piece.removed += below - key.oldest;
                removals.push(Removal { key: Trimmed::No(key.no), below });
            }
            if piece.removed == VERSIONS {
                // This key may have more versions to remove.
                piece.next = Some(key.no - 1);
                break;
            }
        }
        if piece.next.is_none() && l.state.compactable.len() == KEYS {
            piece.next = l.state.compactable.last().map(|k| k.no);
        }
        l.state.removals = removals;
        Ok(piece)
    }

    /// Returns the oldest version that the key keeps; older versions are to be removed.
    fn below(&self, keep: Retention, key: &Compactable) -> i64 {
        let kept = match keep {
            Retention::All => key.oldest,
            Retention::Last(n) => key.version.saturating_sub(n.saturating_sub(1)),
        };
        let seen = if self.before.is_some() { key.at_commit } else { key.oldest };
        kept.max(seen).clamp(key.oldest, key.version)
    }
}
