//! Put: changes the state atomically, with one commit number for all its namespaces.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    engine::prelude::*,
    run::Claims,
    state::{
        Committed, Namespace, Owner, Position, Retention, Table, Value, outcome,
        rows::{Current, Forgetting, NewCommit, NewVersion, Removal, Trimmed},
        run_namespace,
    },
};

/// Largest number of versions that a change removes of its key where the namespace does not keep them. Larger than
/// one, so that older versions go too after a `Retain`; small enough that nobody waits for it.
const TRIMMED: i64 = 4;

/// Author of changes. A namespace's [`Owner`] decides whose changes it takes.
#[derive(Clone, Copy, Debug)]
pub enum Author {
    /// Caller outside of runs.
    Outside,
    /// Attempt of a run.
    Attempt(RunNo, AttemptNo),
    /// Outlast, by a verb that makes the key and the value itself.
    Outlast,
}

impl Author {
    pub fn of(actor: Option<&Actor>) -> Author {
        actor.map_or(Author::Outside, |actor| Author::Attempt(actor.run, actor.attempt))
    }

    fn attempt(self) -> Option<(RunNo, AttemptNo)> {
        match self {
            Author::Attempt(run, attempt) => Some((run, attempt)),
            Author::Outside | Author::Outlast => None,
        }
    }
}

/// Change of one key. Several changes of one key in a transaction are several versions, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub name: Arc<Name>,
    /// New value; `None` deletes the key.
    pub value: Option<Value>,
    /// Version that must be the newest before the transaction (0: never written); otherwise the change fails with
    /// `Conflict`. `None` checks nothing.
    pub expected: Option<i64>,
    /// Position after which the key must not have been written; otherwise the change fails with `Changed`. `None`
    /// checks nothing.
    pub unchanged_since: Option<Position>,
}

impl Change {
    /// Builds a change that sets a key. Encodes the value on the caller's thread.
    pub fn set(name: Arc<Name>, value: &[u8]) -> Change {
        Change { name, value: Some(Value::encode(value)), expected: None, unchanged_since: None }
    }

    /// Builds a change that deletes a key: a version without a value, even if there is nothing to delete.
    pub fn delete(name: Arc<Name>) -> Change {
        Change { name, value: None, expected: None, unchanged_since: None }
    }

    /// Makes the change conditional on the version before the transaction; 0 when the key was never written.
    pub fn expecting(self, version: i64) -> Change {
        Change { expected: Some(version), ..self }
    }

    pub fn need(&self) -> Need {
        Need::State(self.name.clone())
    }

    /// Applies all of `changes` or none. A transaction over several namespaces gets the highest of their commit numbers
    /// plus one, in all of them.
    ///
    /// Errors: `ReadOnlyNamespace` for a namespace whose owner is not `by`; `Conflict`; `Changed`.
    pub fn apply(
        changes: &[Change],
        l: &mut Loaded,
        by: Author,
        transaction: Option<&Arc<str>>,
        now: Micros,
    ) -> Result<Committed, Error> {
        if changes.is_empty() {
            return Ok(Committed { commit: 0, at: now, versions: Vec::new() });
        }
        let own = by.attempt().map(|(run, _)| l.run(run)).transpose()?.map(|run| run_namespace(&run.id));
        for c in changes {
            c.check(l, by, own.as_deref())?;
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

    /// Returns the rows that a result with `changes` needs, beside the rows of its entry, which names the attempt.
    pub fn needs_of_result(changes: &[Change], opening: &Opening) -> Vec<Need> {
        let Opening { run, instance, .. } = *opening;
        let mut needs = life::needs(opening);
        needs.extend(changes.iter().map(Change::need));
        if !changes.is_empty() {
            needs.extend([Need::Instance(instance), Need::OpenAttempts(run), Need::Leases(run)]);
        }
        needs
    }

    /// Applies the changes that a result carries. The entry's own process closes it, whoever drives the run now, but
    /// changing the state needs the fence of the entry's attempt. Without the fence the result is refused as well: a
    /// result without its changes would be taken for done.
    pub fn apply_with_result(
        changes: &[Change],
        l: &mut Loaded,
        actor: Actor,
        now: Micros,
    ) -> Result<Committed, Error> {
        if !changes.is_empty() {
            guard::is_driven(l, &actor)?;
        }
        Change::apply(changes, l, Author::of(Some(&actor)), None, now)
    }

    /// Checks that the author may write the namespace, and that the key's version is the expected one. `own` is the
    /// namespace of the author's run.
    fn check(&self, l: &Loaded, by: Author, own: Option<&str>) -> Result<(), Error> {
        let Name { namespace, agent, key } = &*self.name;
        let is_let_in = match (Owner::of(namespace), by) {
            (Owner::Anyone, Author::Outside | Author::Attempt(..)) => true,
            (Owner::Run, Author::Attempt(..)) => own == Some(namespace),
            (Owner::Outlast, Author::Outlast) => true,
            (Owner::Anyone, Author::Outlast)
            | (Owner::Run, Author::Outside | Author::Outlast)
            | (Owner::Outlast, Author::Outside | Author::Attempt(..)) => false,
        };
        if !is_let_in {
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

    /// Adds the change as a new version, and returns its number.
    fn write(&self, l: &mut Loaded, by: Author, commit: i64, at: Micros) -> i64 {
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
        let (run, attempt) = by.attempt().unzip();
        l.state.versions.push(NewVersion {
            name: self.name.clone(),
            version,
            position,
            value: self.value.clone(),
            commit,
            at,
            run,
            attempt,
        });
        version
    }
}

/// Advances the namespaces to their common next commit. Their time never goes back with the clock, so that the
/// state at a time is the state after the last commit until then.
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
                let (keep, forgotten) = (Retention::All, 0);
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
        let (Some(Retention::Last(kept)), Some(row)) = (keep, l.state.keys.get_mut(name)) else { continue };
        let newest = row.value.version;
        let below = newest.saturating_sub(kept.saturating_sub(1)).min(newest);
        let below = below.min(row.value.oldest + TRIMMED * changes);
        if below > row.value.oldest {
            row.touched().oldest = below;
            l.state.removals.push(Removal { key: Trimmed::Changed(name.clone()), below });
        }
    }
}

/// Removes a few transaction ids of each namespace that are older than outcomes are kept.
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

/// Returns the namespaces of the changes, each once.
fn distinct(changes: &[Change]) -> Vec<&str> {
    let mut names: Vec<&str> = changes.iter().map(|c| c.name.namespace.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Changes the state. Under a run it carries the run's fence: a stale process gets `LeaseLost`.
///
/// Synced. Idempotent on `transaction`: a repeat returns the recorded outcome and writes nothing.
/// Errors: `Conflict` and `Changed` name the current version; `ReadOnlyNamespace` for another run's namespace
/// and for one of Outlast's own. An error writes nothing.
#[derive(Clone, Debug, Default)]
pub struct Put {
    pub actor: Option<(Actor, Slot)>,
    pub changes: Vec<Change>,
    /// The caller's id of this transaction, which is remembered for at least [`outcome::KEPT_US`]; `None` for no id.
    pub transaction: Option<Arc<str>>,
}

impl Put {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs: Vec<Need> = self.changes.iter().map(Change::need).collect();
        needs.extend(self.transaction.clone().map(Need::Transaction));
        if let Some((actor, slot)) = &self.actor {
            needs.extend(guard::needs(actor, *slot, []));
        }
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Committed, Error> {
        if let Some(outcome) = &l.state.outcome {
            return Ok(outcome.clone());
        }
        if let Some((actor, _)) = &self.actor {
            guard::is_driven(l, actor)?;
        }
        let by = Author::of(self.actor.as_ref().map(|(actor, _)| actor));
        Change::apply(&self.changes, l, by, self.transaction.as_ref(), now)
    }
}

/// Changes the state as the attempt that a run token names. All of `changes`, or none.
///
/// The `Put` of processes that are no instances: an agent's children hold only its token. Synced.
/// Idempotent on `transaction`. Errors: `LeaseLost` once the attempt is over or another one drives its slot;
/// `Conflict` and `Changed`; `ReadOnlyNamespace` for another run's namespace and for one of Outlast's own. An
/// error writes nothing.
#[derive(Clone, Debug)]
pub struct PutByToken {
    /// Claims of a token whose signature was checked.
    pub claims: Claims,
    pub changes: Vec<Change>,
    /// The caller's id of this transaction, never used for another one; `None` for no id.
    pub transaction: Option<Arc<str>>,
    /// Whether the changes are progress of the agent: counted like a finished entry, so that a later death is no
    /// crash loop.
    pub progress: bool,
}

impl PutByToken {
    pub fn needs(&self) -> Vec<Need> {
        let Claims { run, attempt, slot, .. } = self.claims;
        let mut needs: Vec<Need> = self.changes.iter().map(Change::need).collect();
        needs.extend(self.transaction.clone().map(Need::Transaction));
        needs.extend([Need::Run(run), Need::Attempt(run, attempt), Need::Lease(run, slot)]);
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Committed, Error> {
        if let Some(outcome) = &l.state.outcome {
            return Ok(outcome.clone());
        }
        guard::bears(l, &self.claims)?;
        let by = Author::Attempt(self.claims.run, self.claims.attempt);
        let committed = Change::apply(&self.changes, l, by, self.transaction.as_ref(), now)?;
        if self.progress {
            l.run_mut(self.claims.run)?.closed += 1;
        }
        Ok(committed)
    }
}

/// Writes a row of `table`, whose older versions go as the table says.
///
/// Errors: `Conflict` if the row's version is not the expected one. An error writes nothing.
#[derive(Clone, Debug)]
pub struct PutRow {
    pub table: Table,
    pub key: Arc<str>,
    pub value: Value,
    /// Version that must be the newest (0: never written); `None` checks nothing.
    pub expected: Option<i64>,
}

impl PutRow {
    fn change(&self) -> Change {
        let (name, value) = (self.table.name(&self.key), Some(self.value.clone()));
        Change { name, value, expected: self.expected, unchanged_since: None }
    }

    pub fn needs(&self) -> Vec<Need> {
        vec![self.change().need()]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Committed, Error> {
        let committed = Change::apply(&[self.change()], l, Author::Outlast, None, now)?;
        let keep = self.table.keep();
        if let Some(row) = l.state.namespaces.get_mut(self.table.namespace()) {
            row.touched().keep = keep;
        }
        Ok(committed)
    }
}
