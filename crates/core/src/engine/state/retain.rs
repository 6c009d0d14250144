//! Retain: sets how long old versions are kept; compact removes those that are older.

use crate::{
    engine::{Actor, Error, Loaded, Need, rule::guard},
    state::{
        Namespace, Owner, Retention,
        rows::{Compactable, Removal, Trimmed},
        run_namespace,
    },
    words::{Micros, Row, Slot},
};

/// Sets the versions that a namespace keeps. Removes nothing itself: later changes and compaction do.
///
/// Errors: `BadKeep` when less than one version would be kept; under a run `LeaseLost` for a stale process, and
/// `ReadOnlyNamespace` for another run's namespace, and for one of Outlast's own whoever asks.
#[derive(Clone, Debug)]
pub struct Retain {
    /// Attempt that sets the rule, with its slot; `None` for a person.
    pub actor: Option<(Actor, Slot)>,
    pub namespace: String,
    pub keep: Retention,
}

impl Retain {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![Need::Namespace(self.namespace.clone())];
        needs.extend(self.actor.iter().flat_map(|(actor, slot)| guard::needs(actor, *slot, [])));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<(), Error> {
        if let Retention::Last(n) = self.keep
            && n < 1
        {
            return Err(Error::BadKeep { had: n });
        }
        let namespace = &self.namespace;
        let is_let_in = match (Owner::of(namespace), &self.actor) {
            (Owner::Anyone, _) | (Owner::Run, None) => true,
            (Owner::Run, Some((actor, _))) => *namespace == run_namespace(&l.run(actor.run)?.id),
            (Owner::Outlast, _) => false,
        };
        if let Some((actor, _)) = &self.actor {
            guard::is_driven(l, actor)?;
        }
        if !is_let_in {
            return Err(Error::ReadOnlyNamespace { namespace: namespace.clone() });
        }
        match l.state.namespaces.get_mut(&self.namespace) {
            Some(row) if row.value.keep == self.keep => {}
            Some(row) => row.touched().keep = self.keep,
            None => {
                let name = self.namespace.clone();
                let row = Row::insert(Namespace {
                    name: name.clone(),
                    commit: 0,
                    at: now,
                    keep: self.keep,
                    forgotten: 0,
                });
                l.state.namespaces.insert(name, row);
            }
        }
        Ok(())
    }
}

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
