//! Put: the state changes, atomically, under one commit number per namespace.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need, Row},
        op::Actor,
        rule::guard,
    },
    state::{
        Committed, Keep, Name, Namespace, OURS, Position, Value, is_a_runs, outcome,
        rows::{Current, Forgetting, NewCommit, NewVersion, Removal, Trimmed},
        run_namespace,
    },
    words::id::{AttemptNo, InstanceNo, Micros, RunNo, Slot},
};

/// Versions that a change may remove of its key where the namespace does not keep them: more than it adds, so
/// that what was there when that was said goes too, and few enough that nobody waits for it.
const TRIMMED: i64 = 4;

/// One change of one key. Several changes of one key in a transaction are several versions, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub name: Arc<Name>,
    /// `None` deletes.
    pub value: Option<Value>,
    /// Fails with `Conflict` unless the version before the transaction is this one (0: absent).
    pub expected: Option<i64>,
    /// Fails with `Changed` if the key was written behind this position.
    pub unchanged_since: Option<Position>,
}

impl Change {
    /// Sets a key. Prepares the value: takes the caller's time.
    pub fn set(name: Arc<Name>, value: &[u8]) -> Change {
        Change { name, value: Some(Value::encode(value)), expected: None, unchanged_since: None }
    }

    /// Deletes a key: a version without a value, also when there is nothing to delete.
    pub fn delete(name: Arc<Name>) -> Change {
        Change { name, value: None, expected: None, unchanged_since: None }
    }

    /// Only if the version before the transaction is this one; 0 when the key was never written.
    pub fn expecting(self, version: i64) -> Change {
        Change { expected: Some(version), ..self }
    }

    pub fn need(&self) -> Need {
        Need::State(self.name.clone())
    }

    /// Applies all of `changes` or none. A transaction over several namespaces takes the highest of
    /// their commit numbers plus one, in all of them.
    ///
    /// `by` is the run that writes, which alone may write its own namespace.
    pub fn apply(
        changes: &[Change],
        l: &mut Loaded,
        by: Option<(RunNo, AttemptNo)>,
        transaction: Option<&Arc<str>>,
        now: Micros,
    ) -> Result<Committed, Error> {
        if changes.is_empty() {
            return Ok(Committed { commit: 0, at: now, versions: Vec::new() });
        }
        let own = by.map(|(run, _)| l.run(run)).transpose()?.map(|run| run_namespace(&run.id));
        for c in changes {
            c.check(l, own.as_deref())?;
        }
        let (commit, at) = advance(changes, l, now);
        let mut versions = Vec::with_capacity(changes.len());
        for c in changes {
            versions.push(c.write(l, by, commit, at));
        }
        for namespace in distinct(changes) {
            l.state.commits.push(NewCommit {
                namespace: namespace.to_owned(),
                commit,
                at,
                position: l.state.position,
                transaction: transaction.cloned(),
            });
        }
        trim(changes, l);
        forget_ids(changes, l, now);
        Ok(Committed { commit, at, versions })
    }

    /// What a result that carries `changes` needs: which attempt it is of stands in its entry.
    pub fn needs_of_result(changes: &[Change], run: RunNo, instance: InstanceNo) -> Vec<Need> {
        let mut needs: Vec<Need> = changes.iter().map(Change::need).collect();
        if !changes.is_empty() {
            needs.extend([Need::Instance(instance), Need::OpenAttempts(run), Need::Leases(run)]);
        }
        needs
    }

    /// Applies what a result carries. The result is closed by its own process, whoever drives the run now; to
    /// change the state is to put, and wants the fence of the entry's attempt. One that does not hold it refuses the
    /// result too, for one without what it changed would be taken for done.
    pub fn apply_with_result(
        changes: &[Change],
        l: &mut Loaded,
        actor: Actor,
        now: Micros,
    ) -> Result<Committed, Error> {
        if !changes.is_empty() {
            guard::drives(l, &actor)?;
        }
        Change::apply(changes, l, Some((actor.run, actor.attempt)), None, now)
    }

    /// May it be written, and does it find what it expects?
    fn check(&self, l: &Loaded, own: Option<&str>) -> Result<(), Error> {
        let Name { namespace, agent, key } = &*self.name;
        // What an agent is under is not the agent's to change.
        let ours = own.is_some() && namespace.starts_with(OURS);
        if ours || is_a_runs(namespace) && own != Some(namespace) {
            return Err(Error::ReadOnlyNamespace { namespace: namespace.clone() });
        }
        let current = l.state.keys.get(&self.name).map(|r| &r.value);
        let actual = current.map_or(0, |c| c.version);
        if let Some(expected) = self.expected.filter(|e| *e != actual) {
            let (namespace, agent, key) = (namespace.clone(), agent.clone(), key.clone());
            return Err(Error::Conflict { namespace, agent, key, expected, actual });
        }
        if let Some(c) = current.filter(|c| self.unchanged_since.is_some_and(|p| c.position > p)) {
            let (namespace, agent, key) = (namespace.clone(), agent.clone(), key.clone());
            return Err(Error::Changed { namespace, agent, key, actual: c.version, commit: c.commit });
        }
        Ok(())
    }

    /// Adds its version, and returns the number of it.
    fn write(&self, l: &mut Loaded, by: Option<(RunNo, AttemptNo)>, commit: i64, at: Micros) -> i64 {
        let position = Position(l.state.position.0 + 1);
        l.state.position = position;
        let progress = self.value.as_ref().and_then(Value::progress);
        let live = self.value.is_some();
        let version = match l.state.keys.get_mut(&self.name) {
            Some(row) => {
                let c = row.touched();
                let moved = c.moved || c.live != live || c.progress != progress || c.oldest == c.version;
                let version = c.version + 1;
                *c = Current { version, live, position, commit, at, progress, moved, ..c.clone() };
                c.version
            }
            None => {
                let (version, oldest, first, no) = (1, 1, position, 0);
                let moved = true;
                let current =
                    Current { version, live, position, commit, at, first, oldest, progress, moved, no };
                l.state.keys.insert(self.name.clone(), Row::insert(current));
                version
            }
        };
        l.state.versions.push(NewVersion {
            name: self.name.clone(),
            version,
            position,
            value: self.value.clone(),
            commit,
            at,
            run: by.map(|b| b.0),
            attempt: by.map(|b| b.1),
        });
        version
    }
}

/// Moves the namespaces on to their common next commit. Their time never goes back with the clock, so
/// that what stood at a time is what stood after the last commit until then.
fn advance(changes: &[Change], l: &mut Loaded, now: Micros) -> (i64, Micros) {
    let heads = || distinct(changes).into_iter().filter_map(|ns| l.state.namespaces.get(ns));
    let commit = heads().map(|r| r.value.commit).max().unwrap_or(0) + 1;
    let at = heads().map(|r| r.value.at).max().unwrap_or(now).max(now);
    for name in distinct(changes) {
        match l.state.namespaces.get_mut(name) {
            Some(row) => {
                let head = row.touched();
                (head.commit, head.at) = (commit, at);
            }
            None => {
                let name = name.to_owned();
                let (keep, forgotten) = (Keep::All, 0);
                let row = Row::insert(Namespace { name: name.clone(), commit, at, keep, forgotten });
                l.state.namespaces.insert(name, row);
            }
        }
    }
    (commit, at)
}

/// Removes versions of the changed keys that their namespaces do not keep.
fn trim(changes: &[Change], l: &mut Loaded) {
    let mut counts: BTreeMap<&Arc<Name>, i64> = BTreeMap::new();
    for c in changes {
        *counts.entry(&c.name).or_default() += 1;
    }
    for (name, changes) in counts {
        let keep = l.state.namespaces.get(&name.namespace).map(|row| row.value.keep);
        let (Some(Keep::Last(kept)), Some(row)) = (keep, l.state.keys.get_mut(name)) else { continue };
        let newest = row.value.version;
        let below = newest.saturating_sub(kept.saturating_sub(1)).min(newest);
        let below = below.min(row.value.oldest + TRIMMED * changes);
        if below > row.value.oldest {
            row.touched().oldest = below;
            l.state.removals.push(Removal { key: Trimmed::Changed(name.clone()), below });
        }
    }
}

/// Forgets ids of transactions that are older than outcomes are kept, a few of each namespace.
fn forget_ids(changes: &[Change], l: &mut Loaded, now: Micros) {
    for namespace in distinct(changes) {
        let Some((to, _)) = l.state.old_ids.remove(namespace).filter(|(_, at)| outcome::is_old(*at, now))
        else {
            continue;
        };
        if let Some(row) = l.state.namespaces.get_mut(namespace) {
            let head = row.touched();
            let (above, namespace) = (head.forgotten, namespace.to_owned());
            head.forgotten = to;
            l.state.forgettings.push(Forgetting { namespace, above, to });
        }
    }
}

/// The namespaces of the changes, each once.
fn distinct(changes: &[Change]) -> Vec<&str> {
    let mut names: Vec<&str> = changes.iter().map(|c| c.name.namespace.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Changes the state. Under a run it carries the run's fence: a stale process gets `LeaseLost`.
///
/// Synced. Idempotent on `transaction`: asked again, it answers what was recorded and writes nothing.
/// Errors: `Conflict` and `Changed` name what stands there; `ReadOnlyNamespace` for another run's
/// namespace. Nothing is written.
#[derive(Clone, Debug, Default)]
pub struct Put {
    pub actor: Option<(Actor, Slot)>,
    pub changes: Vec<Change>,
    /// The caller's name of this transaction; known for [`outcome::KEPT_US`] at least.
    pub transaction: Option<Arc<str>>,
}

impl Put {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs: Vec<Need> = self.changes.iter().map(Change::need).collect();
        needs.extend(self.transaction.clone().map(Need::Transaction));
        if let Some((actor, slot)) = &self.actor {
            needs.extend(guard::needs(actor, *slot));
        }
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Committed, Error> {
        if let Some(outcome) = &l.state.outcome {
            return Ok(outcome.clone());
        }
        if let Some((actor, _)) = &self.actor {
            guard::drives(l, actor)?;
        }
        let by = self.actor.map(|(a, _)| (a.run, a.attempt));
        Change::apply(&self.changes, l, by, self.transaction.as_ref(), now)
    }
}
