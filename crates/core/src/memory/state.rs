//! Agents' state in memory.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use crate::{
    engine::{self, Loaded},
    state::{
        At, Committed, Item, Listed, Name, Namespace, Position, ResumePoint, Value, furthest, outcome,
        rows::{Compactable, Current, NewCommit, NewVersion, Rows, Trimmed},
    },
    store::{
        Error, Which,
        state::{Event, EventPage, EventRange, History, Moment, Scan},
    },
    words::{Row, Touch},
};

/// Rows of the state.
#[derive(Clone, Default)]
pub struct StateTables {
    pub namespaces: BTreeMap<String, Namespace>,
    pub keys: BTreeMap<Arc<Name>, Current>,
    pub versions: BTreeMap<(Arc<Name>, i64), NewVersion>,
    pub commits: BTreeMap<(String, i64), NewCommit>,
    /// Position of the last removal by compaction, by namespace and agent.
    pub removed: BTreeMap<(String, String), Position>,
    order: BTreeMap<Position, (Arc<Name>, i64)>,
}

impl StateTables {
    pub fn load_key(&self, l: &mut Loaded, name: &Arc<Name>) {
        let found = self.keys.get(name).map(|current| (name.clone(), Row::read(current.clone())));
        l.state.keys.extend(found);
    }

    pub fn load_namespace(&self, l: &mut Loaded, name: &str) {
        let Some(namespace) = self.namespaces.get(name) else { return };
        l.state.namespaces.insert(name.to_owned(), Row::read(namespace.clone()));
        let from = (name.to_owned(), namespace.forgotten + 1);
        let mut behind = self.commits.range(from..=(name.to_owned(), i64::MAX)).map(|(_, c)| c);
        let old = behind.nth(outcome::AT_ONCE - 1).map(|c| (name.to_owned(), (c.commit, c.at)));
        l.state.old_ids.extend(old);
    }

    /// Removes a namespace, and keeps the position of the store's newest version.
    pub fn forget(&mut self, namespace: &str) {
        let newest = self.position();
        self.namespaces.remove(namespace);
        self.keys.retain(|name, _| name.namespace != namespace);
        self.versions.retain(|(name, _), _| name.namespace != namespace);
        self.commits.retain(|(of, _), _| of != namespace);
        self.removed.retain(|(of, _), _| of != namespace);
        self.order.retain(|position, (name, _)| name.namespace != namespace || *position == newest);
    }

    pub fn load_compactable(
        &self,
        l: &mut Loaded,
        namespace: &str,
        before: Option<i64>,
        after: i64,
        limit: usize,
    ) {
        let seen = self.bound(namespace, At::Commit(before.unwrap_or(0)));
        let of = |(name, c): &(&Arc<Name>, &Current)| {
            name.namespace == namespace && c.no > after && c.oldest < c.version
        };
        let mut found: Vec<Compactable> = self
            .keys
            .iter()
            .filter(of)
            .map(|(name, c)| {
                let at_commit = self.newest_until(name, seen).map_or(c.oldest, |v| v.version);
                Compactable { no: c.no, oldest: c.oldest, version: c.version, at_commit }
            })
            .collect();
        found.sort_by_key(|c| c.no);
        found.truncate(limit);
        l.state.compactable = found;
    }

    pub fn outcome(&self, id: &str) -> Option<Committed> {
        let found = self.commits.values().find(|c| c.transaction.as_deref() == Some(id))?;
        Some(Committed { commit: found.commit, at: found.at, versions: Vec::new() })
    }

    /// Writes touched rows back. Panics on changes that no correct decision makes.
    pub fn apply(&mut self, rows: Rows) {
        let mut namespaces = rows.namespaces.into_iter().filter(|(_, r)| r.touch != Touch::Read);
        let mut next_no = self.keys.len() as i64 + 1;
        for (name, row) in rows.keys {
            let mut current = row.value;
            let old = self.keys.get(&name);
            match row.touch {
                Touch::Read => continue,
                Touch::Insert => {
                    assert!(old.is_none(), "key {name:?} inserted twice");
                    (current.no, next_no) = (next_no, next_no + 1);
                }
                Touch::Update => {
                    let old = old.unwrap_or_else(|| panic!("key {name:?} updated, and it was not there"));
                    assert!(old.version < current.version && old.position < current.position);
                }
            }
            current.moved = false;
            self.keys.insert(name, current);
        }
        for v in rows.versions {
            assert!(v.position > self.position(), "position {:?} given twice", v.position);
            assert!(namespaces_have(&rows.commits, &v), "a version without its commit: {v:?}");
            self.order.insert(v.position, (v.name.clone(), v.version));
            let old = self.versions.insert((v.name.clone(), v.version), v);
            assert!(old.is_none(), "a version was written twice");
        }
        for commit in rows.commits {
            let old = self.commits.insert((commit.namespace.clone(), commit.commit), commit);
            assert!(old.is_none(), "commit {old:?} written twice");
        }
        namespaces.by_ref().for_each(|(name, row)| {
            let old = self.namespaces.insert(name, row.value.clone());
            let order = old.is_none_or(|o| o.commit <= row.value.commit && o.at <= row.value.at);
            assert!(order, "namespace went back to {:?}", row.value);
        });
        for removal in rows.removals {
            let is_meant = |name: &Arc<Name>, c: &Current| match &removal.key {
                Trimmed::No(no) => c.no == *no,
                Trimmed::Changed(changed) => name == changed,
            };
            let found = self.keys.iter_mut().find(|(name, c)| is_meant(name, c));
            let (name, current) = found.unwrap_or_else(|| panic!("{removal:?}"));
            assert!(removal.below <= current.version, "{removal:?} takes the newest version");
            let all = (name.clone(), i64::MIN)..(name.clone(), removal.below);
            let gone: Vec<i64> = self.versions.range(all).map(|((_, version), _)| *version).collect();
            assert!(!gone.is_empty(), "{removal:?} removes nothing");
            for version in gone {
                let Some(v) = self.versions.remove(&(name.clone(), version)) else { continue };
                self.order.remove(&v.position);
                let removed = self.removed.entry((name.namespace.clone(), name.agent.clone())).or_default();
                *removed = v.position.max(*removed);
            }
            current.oldest = removal.below;
        }
        for f in rows.forgettings {
            let behind = (f.namespace.clone(), f.above + 1)..=(f.namespace, f.to);
            self.commits.range_mut(behind).for_each(|(_, c)| c.transaction = None);
        }
    }

    pub fn position(&self) -> Position {
        self.order.keys().next_back().copied().unwrap_or_default()
    }

    /// Returns the position of a namespace's last commit that `holds`, which must hold for no later commit.
    fn last(&self, namespace: &str, holds: impl Fn(&NewCommit) -> bool) -> Position {
        let commits = self.commits.range((namespace.to_owned(), i64::MIN)..=(namespace.to_owned(), i64::MAX));
        commits.map(|(_, c)| c).take_while(|c| holds(c)).last().map_or(Position(0), |c| c.position)
    }

    /// Returns the last position that a read at `at` sees.
    fn bound(&self, namespace: &str, at: At) -> Position {
        match at {
            At::Newest => Position(i64::MAX),
            At::Position(p) => p,
            At::Commit(n) => self.last(namespace, |c| c.commit <= n),
            At::Time(t) => self.last(namespace, |c| c.at <= t),
        }
    }

    fn newest_until(&self, name: &Arc<Name>, bound: Position) -> Option<&NewVersion> {
        let all = self.versions.range((name.clone(), i64::MIN)..=(name.clone(), i64::MAX));
        all.rev().map(|(_, v)| v).find(|v| v.position <= bound)
    }

    /// Returns the version of a key that was the newest at `bound`.
    fn version_at(&self, name: &Arc<Name>, bound: Position) -> Result<Option<&NewVersion>, Error> {
        let Some(current) = self.keys.get(name).filter(|c| c.first <= bound) else { return Ok(None) };
        match self.newest_until(name, bound) {
            Some(v) => Ok(Some(v)),
            None => {
                let (key, oldest) = (name.key.clone(), current.oldest);
                Err(engine::Error::Compacted { key, oldest }.into())
            }
        }
    }

    /// Returns the live versions that a scan selects.
    fn scanned(&self, scan: &Scan) -> Result<Vec<&NewVersion>, Error> {
        let bound = self.bound(&scan.namespace, scan.at);
        let first = Name::new(&scan.namespace, &scan.agent, &scan.prefix);
        let mut found = Vec::new();
        for name in self.keys.range(first..).map(|(name, _)| name) {
            let ours = name.namespace == scan.namespace && name.agent == scan.agent;
            if !ours || !name.key.starts_with(&scan.prefix) || found.len() == scan.limit {
                break;
            }
            if scan.after.as_ref().is_some_and(|after| name.key <= *after) {
                continue;
            }
            found.extend(self.version_at(name, bound)?.filter(|v| v.value.is_some()));
        }
        Ok(found)
    }
}

fn namespaces_have(commits: &[NewCommit], v: &NewVersion) -> bool {
    commits.iter().any(|c| c.namespace == v.name.namespace && c.commit == v.commit)
}

fn item(v: &NewVersion) -> Result<Item, Error> {
    let damaged = |e| Error::Corrupt { what: format!("version {} of {:?}: {e}", v.version, v.name) };
    Ok(Item {
        namespace: v.name.namespace.clone(),
        agent: v.name.agent.clone(),
        key: v.name.key.clone(),
        version: v.version,
        value: v.value.as_ref().map(Value::decoded).transpose().map_err(damaged)?,
        commit: v.commit,
        at: v.at,
        run: v.run,
        attempt: v.attempt,
        position: v.position,
    })
}

impl StateTables {
    pub fn at(&self, name: Arc<Name>, which: Which) -> Result<Option<Item>, Error> {
        let version = match which {
            Which::At(at) => {
                return self.version_at(&name, self.bound(&name.namespace, at))?.map(item).transpose();
            }
            Which::Version(version) => version,
        };
        match self.keys.get(&name).filter(|c| (1..=c.version).contains(&version)) {
            Some(c) if version < c.oldest => {
                Err(engine::Error::Compacted { key: name.key.clone(), oldest: c.oldest }.into())
            }
            Some(_) => self.versions.get(&(name, version)).map(item).transpose(),
            None => Ok(None),
        }
    }

    pub fn history(&self, name: Arc<Name>, after: i64, limit: usize) -> Result<History, Error> {
        let range = (Bound::Excluded((name.clone(), after)), Bound::Included((name.clone(), i64::MAX)));
        let items = self.versions.range(range).map(|(_, v)| item(v)).take(limit).collect::<Result<_, _>>()?;
        Ok(History { items, oldest: self.keys.get(&name).map_or(0, |c| c.oldest) })
    }

    pub fn keys(&self, scan: &Scan) -> Result<Vec<Listed>, Error> {
        let listed = |v: &NewVersion| Listed {
            key: v.name.key.clone(),
            version: v.version,
            commit: v.commit,
            at: v.at,
        };
        Ok(self.scanned(scan)?.into_iter().map(listed).collect())
    }

    pub fn scan(&self, scan: &Scan) -> Result<Vec<Item>, Error> {
        self.scanned(scan)?.into_iter().map(item).collect()
    }

    pub fn events(&self, range: &EventRange) -> Result<EventPage, Error> {
        let ns = &range.namespace;
        let before = match range.from {
            None => Position(0),
            Some(Moment::Commit(n)) => self.last(ns, |c| c.commit < n),
            Some(Moment::Time(from)) => self.last(ns, |c| c.at < from),
        };
        let until = match range.to {
            None => At::Newest,
            Some(Moment::Commit(n)) => At::Commit(n),
            Some(Moment::Time(to)) => At::Time(to),
        };
        let (after, until) = (before.max(range.after), self.bound(ns, until));
        let ours = |name: &Name| name.namespace == *ns && name.agent == range.agent;
        let events: Result<_, Error> = self
            .order
            .range((Bound::Excluded(after), Bound::Unbounded))
            .take_while(|(position, _)| **position <= until)
            .filter(|(_, (name, _))| ours(name))
            .take(range.limit)
            .map(|(_, place)| {
                let v = &self.versions[place];
                let transaction =
                    self.commits[&(ns.clone(), v.commit)].transaction.as_deref().map(str::to_owned);
                Ok(Event { item: item(v)?, transaction })
            })
            .collect();
        let removed = self.removed.get(&(ns.clone(), range.agent.clone()));
        Ok(EventPage { events: events?, compacted: removed.is_some_and(|p| *p > after) })
    }

    pub fn resume_point(&self, namespace: &str, agent: &str, prefix: &str) -> ResumePoint {
        let keys = self.keys.range(Name::new(namespace, agent, prefix)..);
        let ours = keys.take_while(|(n, _)| n.namespace == namespace && n.agent == agent);
        furthest(prefix, ours.filter_map(|(n, c)| Some((n.key.as_str(), c.progress?))))
    }

    pub fn agents(&self, namespace: &str, after: Option<&str>, limit: usize) -> Vec<String> {
        let names = self.keys.keys().filter(|n| n.namespace == namespace);
        let mut agents: Vec<String> =
            names.map(|n| n.agent.clone()).filter(|a| after.is_none_or(|after| **a > *after)).collect();
        agents.dedup();
        agents.truncate(limit);
        agents
    }
}
