//! State for Python: reads of committed data, and the transactions open in this process.

use std::sync::Arc;

use outlast_core::{
    engine::{
        Change,
        state::transaction::{self, Conflicts, Seen, Transactions},
    },
    state::{At, Item, Name, Position},
    store::{self, Ask as _, Durability, Store, state::Scan},
};
use outlast_server::{
    api::state::{ask, show::Runs},
    state::Error as StateError,
};
use parking_lot::Mutex;
use pyo3::{prelude::*, types::PyBytes};

use crate::{engine::Engine, error::Failure, open_run::OpenRun, shared::Shared, values::RawChange};

/// Size in bytes above which a value is compressed without the interpreter's lock.
const LARGE: usize = 32 << 10;

/// Row of a plug-in: key, version, value (None if deleted), and time in microseconds since the Unix epoch. Its value is not
/// read as JSON.
type RawItem<'py> = (String, i64, Option<Bound<'py, PyBytes>>, i64);

/// Access from Python to the versioned state of one store.
#[pyclass(frozen, module = "outlast._native")]
pub struct States {
    shared: Arc<Shared>,
    /// Runs that wrote what was asked about. Whoever asks has it alone: another thread begins with an empty one.
    runs: Mutex<Runs>,
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
        States { shared: engine.shared(), runs: Mutex::default() }
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

    /// Returns what REST answers to a question about the state, in JSON. See `api::state::ask`.
    fn ask<'py>(
        &self,
        py: Python<'py>,
        question: &str,
        words: Vec<(String, String)>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut runs = std::mem::take(&mut *self.runs.lock());
        let text = self.shared.read(py, |core| ask::answer(core.store.as_ref(), &mut runs, question, words));
        *self.runs.lock() = runs;
        Ok(PyBytes::new(py, &text?))
    }

    /// Returns the store's newest position. All pages of one scan are read at one position.
    fn position(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(self.read(py, |s| s.state_position())?.0)
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
        let at = At::Position(Position(position));
        let (namespace, agent, prefix) = (namespace.to_owned(), agent.to_owned(), prefix.to_owned());
        let scan = Scan { namespace, agent, prefix, after, at, limit };
        let page = self.read(py, |s| s.state_scan(&scan))?;
        Ok(page.into_iter().map(|i| raw(py, i)).collect())
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

    /// Returns an open transaction's own changes of a key: their number, the last one's value, and the position at which
    /// the transaction reads everything else.
    fn see<'py>(
        &self,
        py: Python<'py>,
        id: &str,
        namespace: &str,
        agent: &str,
        key: &str,
    ) -> PyResult<(i64, Option<Bound<'py, PyBytes>>, i64)> {
        let name = Name::new(namespace, agent, key);
        let (seen, snapshot) =
            self.with(|all, now| Ok((all.see(id, &name, now)?, all.snapshot(id, now)?)))?;
        let (changes, value) = match seen {
            Seen::Own { value, changes } => (changes, value),
            Seen::Snapshot(_) => (0, None),
        };
        let value = value.map(|v| v.decoded()).transpose().map_err(damaged)?;
        Ok((changes, value.map(|v| PyBytes::new(py, &v)), snapshot.0))
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

fn raw(py: Python<'_>, item: Item) -> RawItem<'_> {
    (item.key, item.version, item.value.map(|v| PyBytes::new(py, &v)), item.at.0)
}

fn damaged(e: outlast_core::journal::payload::PayloadError) -> PyErr {
    Failure::from(store::Error::Corrupt { what: format!("a value held in memory: {e}") }).into()
}

impl From<StateError> for Failure {
    fn from(e: StateError) -> Failure {
        match e {
            StateError::Store(e) => e.into(),
            e => Failure::new(e.code(), e.to_string(), e.hint().as_deref()),
        }
    }
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
