//! Put: the state changes, atomically, under one commit number per namespace.

use bytes::Bytes;

use crate::{
    engine::{Error, guard},
    id::{AttemptNo, Micros, RunNo, Slot},
    loaded::{Loaded, Need, Row},
    op::Actor,
    state::{Head, Item},
};

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub namespace: String,
    pub agent: String,
    pub key: String,
    /// `None` deletes.
    pub value: Option<Bytes>,
    /// Fails with `Conflict` unless the newest version is this one (0: absent).
    pub expected: Option<i64>,
}

impl Change {
    pub fn need(&self) -> Need {
        Need::State { namespace: self.namespace.clone(), agent: self.agent.clone(), key: self.key.clone() }
    }

    fn names(&self, item: &Item) -> bool {
        item.namespace == self.namespace && item.agent == self.agent && item.key == self.key
    }

    /// Applies all of `changes` or none. A transaction over several namespaces takes the highest of
    /// their commit numbers plus one, in all of them. Returns that number.
    pub fn apply(
        changes: &[Change],
        l: &mut Loaded,
        by: Option<(RunNo, AttemptNo)>,
        now: Micros,
    ) -> Result<i64, Error> {
        if changes.is_empty() {
            return Ok(0);
        }
        for c in changes {
            let actual = newest(l, c).map_or(0, |i| i.version);
            if let Some(expected) = c.expected.filter(|e| *e != actual) {
                return Err(Error::Conflict { key: c.key.clone(), expected, actual });
            }
        }
        let head_of = |l: &Loaded, ns: &str| {
            l.heads.iter().find(|h| h.value.namespace == ns).map_or(0, |h| h.value.commit)
        };
        let commit = changes.iter().map(|c| head_of(l, &c.namespace)).max().unwrap_or(0) + 1;
        for c in changes {
            let version = newest(l, c).map_or(0, |i| i.version) + 1;
            l.items.push(Row::insert(Item {
                namespace: c.namespace.clone(),
                agent: c.agent.clone(),
                key: c.key.clone(),
                version,
                value: c.value.clone(),
                commit,
                at: now,
                run: by.map(|b| b.0),
                attempt: by.map(|b| b.1),
            }));
            match l.heads.iter_mut().find(|h| h.value.namespace == c.namespace) {
                Some(head) => head.touched().commit = commit,
                None => l.heads.push(Row::insert(Head { namespace: c.namespace.clone(), commit })),
            }
        }
        Ok(commit)
    }
}

fn newest<'a>(l: &'a Loaded, c: &Change) -> Option<&'a Item> {
    l.items.iter().map(|r| &r.value).filter(|i| c.names(i)).max_by_key(|i| i.version)
}

/// Changes the state. Under a run it carries the run's fence: a stale process gets `LeaseLost`.
///
/// Synced. Errors: `Conflict` names both versions; nothing is written.
#[derive(Clone, Debug)]
pub struct Put {
    pub actor: Option<(Actor, Slot)>,
    pub changes: Vec<Change>,
}

impl Put {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs: Vec<Need> = self.changes.iter().map(Change::need).collect();
        if let Some((actor, slot)) = &self.actor {
            needs.extend([
                Need::Instance(actor.instance),
                Need::Run(actor.run),
                Need::Attempt(actor.run, actor.attempt),
                Need::Lease(actor.run, *slot),
            ]);
        }
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<i64, Error> {
        if let Some((actor, _)) = &self.actor {
            guard::drives(l, actor)?;
        }
        Change::apply(&self.changes, l, self.actor.map(|(a, _)| (a.run, a.attempt)), now)
    }
}
