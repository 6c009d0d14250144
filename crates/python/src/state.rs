//! State for Python: reads of committed data, and the transactions open in this process.

use std::sync::Arc;

use outlast_core::{
    engine::{
        Change,
        state::transaction::{self, Conflicts, Seen, Transactions},
    },
    reads::places,
    state::{At, Item, Name, Position, ResumePoint},
    store::{
        self, Ask as _, Durability, Store, Which,
        state::{EventRange, Moment, Scan},
    },
    words::{Micros, RunNo},
};
use pyo3::{prelude::*, types::PyBytes};

use crate::{engine::Engine, error::Failure, open_run::OpenRun, shared::Shared, values::RawChange};

/// Size in bytes above which a value is compressed without the interpreter's lock.
const LARGE: usize = 32 << 10;

/// A version as Python sees it: key, version, value (None if deleted), commit, time in microseconds since the Unix
/// epoch, and the numbers of the run and of the attempt that wrote it.
type RawItem<'py> = (String, i64, Option<Bound<'py, PyBytes>>, i64, i64, Option<i64>, Option<i64>);

/// View of a key inside a transaction: the number of its own changes, the last one's value, and the version that was
/// current when it began.
type RawSeen<'py> = (i64, Option<Bound<'py, PyBytes>>, Option<RawItem<'py>>);

/// A version in the order of all writes: its position, the transaction that made it, and the version itself.
type RawEvent<'py> = (i64, Option<String>, RawItem<'py>);

/// Access from Python to the versioned state of one store.
#[pyclass(frozen, module = "outlast._native")]
pub struct States {
    shared: Arc<Shared>,
}

impl States {
    fn read<T: Send>(
        &self,
        py: Python<'_>,
        look: impl FnOnce(&dyn Store) -> Result<T, store::Error> + Send,
    ) -> PyResult<T> {
        self.shared.read(py, |core| look(core.store.as_ref()))
    }

    /// Does something with the transactions that are open in this process.
    fn with<T>(
        &self,
        act: impl FnOnce(&mut Transactions, u64) -> Result<T, transaction::Error>,
    ) -> PyResult<T> {
        Ok(self.shared.core()?.desk.with(act).map_err(Failure::from)?)
    }
}

#[pymethods]
impl States {
    /// Returns the state of the engine's store.
    #[staticmethod]
    fn of(engine: &Engine) -> States {
        States { shared: engine.shared() }
    }

    // --- committed data

    /// Returns the newest version of a key: its tombstone if it is deleted, None if the key is unknown.
    fn get<'py>(
        &self,
        py: Python<'py>,
        namespace: &str,
        agent: &str,
        key: &str,
    ) -> PyResult<Option<RawItem<'py>>> {
        let item = self.read(py, |s| s.state(namespace, agent, key))?;
        Ok(item.map(|i| raw(py, i)))
    }

    /// Returns the version current at `moment`: a "version", or after a "commit", a "time" (microseconds), a
    /// "position".
    fn at<'py>(
        &self,
        py: Python<'py>,
        namespace: &str,
        agent: &str,
        key: &str,
        by: &str,
        moment: i64,
    ) -> PyResult<Option<RawItem<'py>>> {
        let at = match by {
            "commit" => At::Commit(moment),
            "time" => At::Time(Micros(moment)),
            "position" => At::Position(Position(moment)),
            _ => {
                let item = self.read(py, |s| s.state_at(namespace, agent, key, Which::Version(moment)))?;
                return Ok(item.map(|i| raw(py, i)));
            }
        };
        let item = self.read(py, |s| s.state_at(namespace, agent, key, at.into()))?;
        Ok(item.map(|i| raw(py, i)))
    }

    /// Returns versions of a key above `after`, oldest first: (oldest that is kept, versions).
    fn history<'py>(
        &self,
        py: Python<'py>,
        namespace: &str,
        agent: &str,
        key: &str,
        after: i64,
        limit: usize,
    ) -> PyResult<(i64, Vec<RawItem<'py>>)> {
        let history = self.read(py, |s| s.state_history(namespace, agent, key, after, limit))?;
        Ok((history.oldest, history.items.into_iter().map(|i| raw(py, i)).collect()))
    }

    /// Returns the store's newest position. All pages of one scan are read at one position.
    fn position(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(self.read(py, |s| s.state_position())?.0)
    }

    /// Returns the namespace's newest commit, 0 before the first.
    fn head(&self, py: Python<'_>, namespace: &str) -> PyResult<i64> {
        Ok(self.read(py, |s| s.namespace(namespace))?.map_or(0, |n| n.commit))
    }

    /// Returns the names of all namespaces.
    fn namespaces(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let found = self.read(py, places::namespaces)?;
        Ok(found.into_iter().map(|namespace| namespace.name).collect())
    }

    /// Returns all agents of a namespace.
    fn agents(&self, py: Python<'_>, namespace: &str) -> PyResult<Vec<String>> {
        self.read(py, |s| places::agents(s, namespace))
    }

    /// Returns a page of live keys, without reading values.
    #[expect(clippy::too_many_arguments, reason = "they are named in the stub, and have one caller")]
    fn keys(
        &self,
        py: Python<'_>,
        namespace: &str,
        agent: &str,
        prefix: &str,
        after: Option<String>,
        position: i64,
        limit: usize,
    ) -> PyResult<Vec<String>> {
        let scan = scan(namespace, agent, prefix, after, position, limit);
        let page = self.read(py, |s| s.state_keys(&scan))?;
        Ok(page.into_iter().map(|listed| listed.key).collect())
    }

    /// Returns a page of live keys with their values.
    #[expect(clippy::too_many_arguments, reason = "they are named in the stub, and have one caller")]
    fn scan<'py>(
        &self,
        py: Python<'py>,
        namespace: &str,
        agent: &str,
        prefix: &str,
        after: Option<String>,
        position: i64,
        limit: usize,
    ) -> PyResult<Vec<RawItem<'py>>> {
        let scan = scan(namespace, agent, prefix, after, position, limit);
        let page = self.read(py, |s| s.state_scan(&scan))?;
        Ok(page.into_iter().map(|i| raw(py, i)).collect())
    }

    /// Returns a page of the changes of an agent's keys behind the position `after`: (whether compaction removed some,
    /// events as (position, transaction, version)). The end is a (kind, moment) as in `at`.
    #[expect(clippy::too_many_arguments, reason = "they are named in the stub, and have one caller")]
    fn events<'py>(
        &self,
        py: Python<'py>,
        namespace: &str,
        agent: &str,
        from: Option<(String, i64)>,
        to: Option<(String, i64)>,
        after: i64,
        limit: usize,
    ) -> PyResult<(bool, Vec<RawEvent<'py>>)> {
        let moment = |(by, at): (String, i64)| match by.as_str() {
            "time" => Moment::Time(Micros(at)),
            _ => Moment::Commit(at),
        };
        let range = EventRange {
            namespace: namespace.to_owned(),
            agent: agent.to_owned(),
            from: from.map(moment),
            to: to.map(moment),
            after: Position(after),
            limit,
        };
        let page = self.read(py, |s| s.state_events(&range))?;
        let events =
            page.events.into_iter().map(|e| (e.item.position.0, e.transaction, raw(py, e.item))).collect();
        Ok((page.compacted, events))
    }

    /// Returns where a loop over `prefix0`, `prefix1`, … resumes: (the last index that is done, -1 if none; the
    /// last that is pending, and its key).
    fn resume_point(
        &self,
        py: Python<'_>,
        namespace: &str,
        agent: &str,
        prefix: &str,
    ) -> PyResult<(i64, Option<i64>, Option<String>)> {
        let ResumePoint { done, pending, pending_key } =
            self.read(py, |s| s.resume_point(namespace, agent, prefix))?;
        Ok((done, pending, pending_key))
    }

    /// Returns the id of the run with this number; None if there is none.
    fn run_id(&self, py: Python<'_>, run: i64) -> PyResult<Option<String>> {
        let view = self.read(py, |s| s.run(RunNo(run)))?;
        Ok(view.map(|v| v.run.id.to_string()))
    }

    // --- transactions

    /// Begins a transaction that reads the present state, and returns its id. Ids are never reused.
    fn begin(&self, py: Python<'_>, timeout_ms: Option<u64>) -> PyResult<String> {
        let snapshot = self.read(py, |s| s.state_position())?;
        Ok(self.shared.core()?.desk.begin_at(snapshot, timeout_ms).map_err(Failure::from)?)
    }

    /// Adds a change to an open transaction. A `value` of None deletes the key.
    #[expect(clippy::too_many_arguments, reason = "they are named in the stub, and have one caller")]
    fn change(
        &self,
        py: Python<'_>,
        id: &str,
        namespace: &str,
        agent: &str,
        key: &str,
        value: Option<&[u8]>,
        expected: Option<i64>,
    ) -> PyResult<()> {
        let name = Name::new(namespace, agent, key);
        let change = match value {
            Some(value) if value.len() > LARGE => py.detach(|| Change::set(name, value)),
            Some(value) => Change::set(name, value),
            None => Change::delete(name),
        };
        self.with(|all, now| all.change(id, Change { expected, ..change }, now))
    }

    /// Returns the value of a key as an open transaction sees it.
    fn see<'py>(
        &self,
        py: Python<'py>,
        id: &str,
        namespace: &str,
        agent: &str,
        key: &str,
    ) -> PyResult<RawSeen<'py>> {
        let name = Name::new(namespace, agent, key);
        let (seen, snapshot) =
            self.with(|all, now| Ok((all.see(id, &name, now)?, all.snapshot(id, now)?)))?;
        let before = self.read(py, |s| s.state_at(namespace, agent, key, At::Position(snapshot).into()))?;
        let before = before.map(|i| raw(py, i));
        let (changes, value) = match seen {
            Seen::Own { value, changes } => (changes, value),
            Seen::Snapshot(_) => (0, None),
        };
        let value = value.map(|v| v.decoded()).transpose().map_err(damaged)?;
        Ok((changes, value.map(|v| PyBytes::new(py, &v)), before))
    }

    /// Commits a transaction as a whole under the run of `open_run`, and returns its commit number, 0 if it was empty.
    /// Synced. With `first_committer`, fails with `Conflict` if a key that it writes was written since it began.
    #[pyo3(signature = (id, open_run=None, first_committer=false))]
    fn commit(
        &self,
        py: Python<'_>,
        id: &str,
        open_run: Option<&OpenRun>,
        first_committer: bool,
    ) -> PyResult<i64> {
        let conflicts = if first_committer { Conflicts::FirstCommitter } else { Conflicts::Expected };
        let mut put = self.with(|all, now| all.commit(id, conflicts, now))?;
        if put.changes.is_empty() {
            return Ok(0);
        }
        put.actor = open_run.map(OpenRun::actor);
        Ok(self.read(py, |s| s.ask_here(put, Durability::Synced).wait())?.commit)
    }

    /// Ends a transaction without a commit. Returns the position it read at and its changes, which an open step commits
    /// with its result.
    fn take(&self, id: &str) -> PyResult<(i64, Vec<RawChange>)> {
        let (snapshot, put) =
            self.with(|all, now| Ok((all.snapshot(id, now)?, all.commit(id, Conflicts::Expected, now)?)))?;
        let raw = |c: Change| {
            let Name { namespace, agent, key } = (*c.name).clone();
            let value = c.value.map(|v| v.decoded().map(|b| b.to_vec())).transpose().map_err(damaged)?;
            Ok((namespace, agent, key, value, c.expected))
        };
        Ok((snapshot.0, put.changes.into_iter().map(raw).collect::<PyResult<_>>()?))
    }

    /// Ends a transaction without a commit. Returns false if it was already over.
    fn abort(&self, id: &str) -> bool {
        // A store that is closed has none open: whatever ended the caller counts more.
        self.with(|all, _| Ok(all.abort(id))).unwrap_or(false)
    }

    /// Returns the commit number of a committed transaction, 0 if it was empty; None for any other. Errors if the transaction is older
    /// than the ids that are kept.
    fn outcome(&self, py: Python<'_>, id: &str) -> PyResult<Option<i64>> {
        if self.with(|all, _| Ok(all.was_empty(id)))? {
            return Ok(Some(0));
        }
        let (found, now) = self.read(py, |s| Ok((s.transaction_outcome(id)?, s.now()?)))?;
        match (found, transaction::unknown(id, now)) {
            (None, forgotten @ transaction::Error::Forgotten { .. }) => Err(Failure::from(forgotten).into()),
            (found, _) => Ok(found.map(|c| c.commit)),
        }
    }

    /// Returns the number of open transactions and the bytes they hold.
    fn held(&self) -> PyResult<(usize, usize)> {
        self.with(|all, _| Ok(all.held()))
    }
}

fn scan(
    namespace: &str,
    agent: &str,
    prefix: &str,
    after: Option<String>,
    position: i64,
    limit: usize,
) -> Scan {
    let at = At::Position(Position(position));
    let (namespace, agent, prefix) = (namespace.to_owned(), agent.to_owned(), prefix.to_owned());
    Scan { namespace, agent, prefix, after, at, limit }
}

fn raw(py: Python<'_>, item: Item) -> RawItem<'_> {
    let value = item.value.map(|v| PyBytes::new(py, &v));
    let (run, attempt) = (item.run.map(|r| r.0), item.attempt.map(|a| a.0));
    (item.key, item.version, value, item.commit, item.at.0, run, attempt)
}

fn damaged(e: outlast_core::journal::payload::PayloadError) -> PyErr {
    Failure::from(store::Error::Corrupt { what: format!("a value held in memory: {e}") }).into()
}

impl From<transaction::Error> for Failure {
    fn from(e: transaction::Error) -> Failure {
        let hint = match &e {
            transaction::Error::Expired { .. } => Some("begin again, with a longer timeout_ms"),
            transaction::Error::NotFound { .. } | transaction::Error::Forgotten { .. } => None,
            transaction::Error::Exists { .. } => None,
            transaction::Error::TooManyOpen { .. } | transaction::Error::Full { .. } => {
                Some("commit or abort what is open")
            }
            transaction::Error::TooManyChanges { .. } | transaction::Error::TooLarge { .. } => {
                Some("commit it in parts")
            }
        };
        Failure::new(e.code(), e.to_string(), hint)
    }
}
