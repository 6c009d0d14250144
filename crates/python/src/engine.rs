//! Engine of one store in this process: its instance, its heartbeat, and its proxy if one is used.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use outlast::{
    commands::embedded,
    files::of_run,
    program::find::{self, fork_point},
    proxy_setup,
};
use outlast_core::{
    engine::{
        ExpectItems, InName, Put, Raise, ResetItem, Retain, Snapshot, SpareItem, Start,
        state::transaction::Conflicts,
    },
    envelope::{Limits, PerUnit, Refusal, Unit},
    journal::{ItemRow, Kind},
    reads::{
        entries,
        forks::{Point, id_of, prepare},
        runs::with_id,
        unheld,
    },
    run::{OnDivergence, Policy, Spec, Status},
    state::Retention,
    store::{self, Ask as _, Durability, Error, Page, RunView, Sought, Store},
    words::{AttemptNo, EnvelopeNo, InstanceNo, Micros, RunId, RunNo, Seq, Slot, clock::random},
};
use outlast_process::identity;
use outlast_server::{
    door::Proxy,
    node::{Beat, declare_dead},
    state::{StateDesk, Writer},
    work::take::Taken,
};
use outlast_view::RunDetail;
use parking_lot::Mutex;
use pyo3::{prelude::*, types::PyBytes};
use serde::Serialize;
use tokio::net::TcpListener;

use crate::{
    error::{Failure, refused_hint},
    job::{self, Items, RawItem},
    open_run::{OpenRun, adopt, claim},
    recorded::Recorded,
    shared::{Core, Shared},
    ticket::{Post, Ticket},
    values::{RawChange, changes_of, limits_of, value},
};

/// Time that background tasks have to finish when the engine closes.
const LAST_TASKS: Duration = Duration::from_secs(2);

#[pyclass(frozen, module = "outlast._native")]
pub struct Engine {
    shared: Arc<Shared>,
    #[pyo3(get)]
    place: String,
}

impl Engine {
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Returns the open engine's resources. Errors: `ForkedHandle` in a forked child, `Closed`.
    pub fn core(&self) -> Result<Arc<Core>, Failure> {
        self.shared.core()
    }

    /// Loads the run with this id. Errors: `UnknownRun`.
    pub fn view_of(core: &Core, id: &str) -> Result<RunView, Failure> {
        let unknown = || outlast_core::engine::Error::UnknownRun { id: id.chars().take(140).collect() };
        Ok(with_id(core.store.as_ref(), id)?.ok_or_else(unknown)?)
    }

    fn taken(
        &self,
        py: Python<'_>,
        id: &str,
        take: impl FnOnce(&Core, &RunView) -> PyResult<Taken> + Send,
    ) -> PyResult<OpenRun> {
        let core = self.shared.core()?;
        let (view, taken) = py.detach(|| -> PyResult<_> {
            let view = Self::view_of(&core, id)?;
            let taken = take(&core, &view)?;
            Ok((view, taken))
        })?;
        let has_files = of_run(&view).is_some();
        Ok(OpenRun::new(self.shared.clone(), &core, view.run.id, taken, has_files))
    }
}

/// Status, code, message and hint of a limit, as `Engine::barred` returns them.
type Barred = (&'static str, String, String, String);

#[pymethods]
impl Engine {
    /// Opens the store at `place`, by default the usual one, and registers this process as an instance.
    #[staticmethod]
    fn open(py: Python<'_>, place: Option<String>) -> PyResult<Engine> {
        py.detach(|| open(place)).map_err(PyErr::from)
    }

    /// Returns the place of the store that `open` would open for `place`. Creates nothing.
    #[staticmethod]
    fn resolve(place: Option<String>) -> PyResult<String> {
        Ok(embedded::context(place).map_err(Failure::from)?.0.place.to_string())
    }

    /// Returns whether the store's files at its place are still the ones that were opened.
    fn is_there(&self) -> PyResult<bool> {
        Ok(self.shared.core()?.store.check().is_ok())
    }

    /// Deregisters the instance and closes the store. Idempotent; does nothing in a forked child.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some((core, runtime)) = self.shared.take() else { return Ok(()) };
        py.detach(|| {
            // The heartbeat stops first: it would register this process anew after it has left.
            runtime.shutdown_timeout(LAST_TASKS);
            core.node.leave().or_else(|e| {
                left_behind(core.context.place.to_string(), core.node.instance());
                // Nothing can be told to a store that is gone, and whoever used it was told.
                if matches!(e, Error::Vanished { .. }) { Ok(()) } else { Err(e) }
            })
        })
        .map_err(|e| Failure::from(e).into())
    }

    /// Creates the run, or finds it: (number, created, status). `limits` by unit name; `job` names a batch. Of
    /// these limits and the policy's, the lower one applies; limits set `by_default` give way. Synced.
    #[expect(clippy::too_many_arguments, reason = "they are named in the stub, and have one caller")]
    #[pyo3(signature = (id, limits, tags, name, on_divergence, parent, job=None, policy=None, by_default=false))]
    fn start(
        &self,
        py: Python<'_>,
        id: Option<String>,
        limits: HashMap<String, i64>,
        tags: BTreeMap<String, String>,
        name: Option<String>,
        on_divergence: Option<String>,
        parent: Option<i64>,
        job: Option<String>,
        policy: Option<String>,
        by_default: bool,
    ) -> PyResult<(i64, String, bool, &'static str)> {
        let core = self.shared.core()?;
        let id = match id {
            Some(id) => RunId::new(&id).map_err(|e| Failure::new("bad_run_id", e.to_string(), None))?,
            None => RunId::generate(core.context.clock.now(), random(core.context.entropy.as_ref())),
        };
        let mut policy_of_run = Policy::default();
        if on_divergence.as_deref() == Some("halt") {
            policy_of_run.on_divergence = OnDivergence::Halt;
        }
        let asked = limits_of(&limits)?;
        // An existing run keeps what it was created with, even if the policy has changed.
        let named = py.detach(|| -> Result<_, Failure> {
            match policy.filter(|_| !matches!(core.store.run_no(&id), Ok(Some(_)))) {
                Some(name) => Ok(Some(find::policy(&core.context.around, &*core.store, &name)?)),
                None => Ok(None),
            }
        })?;
        let mut limits = asked;
        if let Some(named) = &named {
            limits = embedded::limits_under(limits, by_default, &named.limits);
            policy_of_run.pause_wall |= named.pause_wall;
        }
        let start = Start {
            limits,
            policy: policy_of_run,
            spec: Spec {
                name,
                tags,
                job,
                limits: Some(asked),
                directory: Some(core.context.around.directory().display().to_string()),
                rules: named.map(|p| p.rules),
                ..Spec::default()
            },
            parent: parent.map(RunNo),
            ..Start::new(id.clone())
        };
        let started =
            py.detach(|| core.store.ask(start, Durability::Synced).wait()).map_err(Failure::from)?;
        Ok((started.run.0, id.to_string(), started.created, started.status.name()))
    }

    /// Sets limits of a run by unit name; None removes one. Returns the run's status. Synced.
    fn amend(&self, py: Python<'_>, run: i64, limits: HashMap<String, i64>) -> PyResult<&'static str> {
        let raise = Raise {
            run: RunNo(run),
            add: Limits::default(),
            set: limits_of(&limits)?,
            lift: PerUnit::default(),
        };
        let raised = |core: &Core| core.store.ask(InName::of(core.actor(), raise), Durability::Synced).wait();
        Ok(self.shared.read(py, raised)?.name())
    }

    /// Returns the run as JSON: see `view`. Errors: `UnknownRun`.
    fn view(&self, py: Python<'_>, id: &str) -> PyResult<String> {
        self.shared.read(py, |core| {
            let view = Self::view_of(core, id)?;
            Ok::<_, Failure>(view_json(&*core.store, &view)?)
        })
    }

    /// Claims the run: opens a new attempt in its driver's slot. `force` takes it even from a living process.
    fn claim(&self, py: Python<'_>, id: &str, force: bool) -> PyResult<OpenRun> {
        self.taken(py, id, |core, view| claim(core, view, Slot::DRIVER, force))
    }

    /// Joins the supervisor's attempt that `token` names.
    fn adopt(&self, py: Python<'_>, id: &str, token: &str) -> PyResult<OpenRun> {
        self.taken(py, id, |core, view| adopt(core, view, token))
    }

    /// Joins a job as a worker: opens an attempt in its own slot, after a sweep of dead instances, whose work is free only
    /// once they are declared dead.
    fn join(&self, py: Python<'_>, id: &str) -> PyResult<OpenRun> {
        self.taken(py, id, |core, view| {
            core.node.sweep().map_err(Failure::from)?;
            claim(core, view, Slot::ANY, false)
        })
    }

    /// Declares instances dead that are certainly gone, so that their work can be claimed.
    fn sweep(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.read(py, |core| core.node.sweep().map(drop))
    }

    /// Returns the limit or rule that blocks a run as (status, code, message, hint), None if there is none. The
    /// status is "halted", or "waiting" if the run waits for a budget above its own or for a budget's next period.
    fn barred(&self, py: Python<'_>, run: i64) -> PyResult<Option<Barred>> {
        let Some(view) = self.shared.read(py, |core| core.store.run(RunNo(run)))? else { return Ok(None) };
        let (status, halt, id) = (view.run.status, view.run.halt, view.run.id);
        let why = match status {
            Status::Halted => halt.unwrap_or_else(|| Refusal::plain("run_halted", Micros(0))),
            // A run that waits for a person or for a time has no such rule.
            Status::Waiting => match halt {
                Some(why) => why,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        Ok(Some((status.name(), why.code.clone(), why.message(), refused_hint(&why, id.as_str()))))
    }

    /// Returns whether a call of the item's newest try may be paid and left no answer.
    fn has_paid_in_vain(&self, py: Python<'_>, run: i64, seq: i64) -> PyResult<bool> {
        self.shared.read(py, |core| entries::has_paid_in_vain(&*core.store, RunNo(run), Seq(seq)))
    }

    /// Returns the number of a run's calls whose charge is an estimate.
    fn estimated_calls(&self, py: Python<'_>, run: i64) -> PyResult<i64> {
        self.shared.read(py, |core| {
            Ok::<_, Failure>(core.store.run(RunNo(run))?.map_or(0, |view| view.run.own.estimated_calls))
        })
    }

    /// Returns lines for people about what no limit of the run holds. Errors: `UnknownRun`.
    fn unheld(&self, py: Python<'_>, id: &str) -> PyResult<Vec<String>> {
        self.shared.read(py, |core| {
            let view = Self::view_of(core, id)?;
            Ok::<_, Failure>(unheld::lines(&*core.store, &view)?)
        })
    }

    /// Returns all recorded items of a job, by key.
    fn recorded_items(&self, py: Python<'_>, run: i64) -> PyResult<Items> {
        self.shared.read(py, |core| Items::read(self.shared.clone(), RunNo(run), core.store.as_ref()))
    }

    /// Returns the newest entries of a job's items after `after`, at most `limit`; with `values`, with what is recorded.
    #[pyo3(signature = (run, after, limit, values=false))]
    fn items<'py>(
        &self,
        py: Python<'py>,
        run: i64,
        after: i64,
        limit: usize,
        values: bool,
    ) -> PyResult<Vec<RawItem<'py>>> {
        let page = Page::new(Seq(after), limit);
        let page = if values { page.with_values() } else { page };
        let rows = self.shared.read(py, |core| job::rows(core.store.as_ref(), RunNo(run), &page, values))?;
        Ok(rows.into_iter().map(|row| job::raw(py, row)).collect())
    }

    /// Returns the newest entry of one item; None if the item has none.
    fn item<'py>(&self, py: Python<'py>, run: i64, key: &str) -> PyResult<Option<RawItem<'py>>> {
        let row = self.shared.read(py, |core| core.store.newest(RunNo(run), &Sought::item(key)))?;
        Ok(row.as_ref().and_then(ItemRow::of).map(|row| job::raw(py, (row, None))))
    }

    /// Records how many items the input of a job has, and how many recorded ones it has not. No caller waits for the commit.
    #[pyo3(signature = (run, items, vanished=0))]
    fn expect_items(&self, run: i64, items: i64, vanished: i64) -> PyResult<()> {
        let core = self.shared.core()?;
        let expect = ExpectItems { run: RunNo(run), items, vanished };
        drop(core.store.submit(expect.into(), Durability::Committed));
        Ok(())
    }

    /// Makes an item pending again. With `reuse`, the paid answers of its earlier tries are replayed. Synced.
    fn reset_item(&self, run: i64, key: String, reuse: bool) -> PyResult<Ticket> {
        let core = self.shared.core()?;
        let reset = ResetItem { run: RunNo(run), key, reuse_answers: reuse };
        Ok(core.ticket(InName::of(core.actor(), reset), Durability::Synced, None))
    }

    /// Takes back that an item's failure counts against it. The ticket's answer is the item's standing. Synced.
    fn spare_item(&self, run: i64, key: String, seq: i64) -> PyResult<Ticket> {
        let spare = SpareItem { run: RunNo(run), key, seq: Seq(seq) };
        Ok(self.shared.core()?.ticket(spare, Durability::Synced, None))
    }

    /// Returns an empty memory of steps for an item: a step recorded earlier is looked up when it begins.
    fn unrecorded(&self, run: i64) -> Recorded {
        Recorded::new(self.shared.clone(), RunNo(run))
    }

    /// Returns the recorded steps of one iteration of a run.
    fn recorded(&self, py: Python<'_>, run: i64, iteration: i64) -> PyResult<Recorded> {
        let scope = outlast_core::journal::iteration_scope(iteration);
        let recorded = self.unrecorded(run);
        self.shared.read(py, |core| recorded.read(core.store.as_ref(), &scope))?;
        Ok(recorded)
    }

    /// Returns a recorded value: a step's result or error, or a checkpoint.
    fn value<'py>(&self, py: Python<'py>, run: i64, seq: i64) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.shared.read(py, |core| value(core.store.as_ref(), RunNo(run), Seq(seq)))?;
        Ok(PyBytes::new(py, &value))
    }

    /// Returns the newest checkpoint of this name as (seq, value), None if there is none.
    fn latest_checkpoint<'py>(
        &self,
        py: Python<'py>,
        run: i64,
        name: &str,
    ) -> PyResult<Option<(i64, Bound<'py, PyBytes>)>> {
        let found = self.shared.read(py, |core| {
            let newest = core.store.newest(RunNo(run), &Sought::done(Kind::Checkpoint, name))?;
            let read = |seq| Ok::<_, Failure>((seq, value(core.store.as_ref(), RunNo(run), seq)?));
            newest.map(|e| read(e.seq)).transpose()
        })?;
        Ok(found.map(|(seq, v)| (seq.0, PyBytes::new(py, &v))))
    }

    /// Changes state outside of any run. Synced.
    fn put(&self, changes: Vec<RawChange>) -> PyResult<Ticket> {
        let core = self.shared.core()?;
        let put = Put { changes: changes_of(changes), ..Put::default() };
        Ok(core.ticket(put, Durability::Synced, None))
    }

    /// Lets a namespace of the state keep only the newest version of each key, from its next changes on. Synced.
    fn keep_newest(&self, py: Python<'_>, namespace: String) -> PyResult<()> {
        let retain = Retain { actor: None, namespace, keep: Retention::Last(1) };
        self.shared.read(py, |core| core.store.ask_here(retain, Durability::Synced).wait())
    }

    /// Returns the address of this process's proxy. The first call starts the proxy.
    fn face(&self, py: Python<'_>) -> PyResult<String> {
        let address = self.shared.read(py, |core| {
            let mut face = core.face.lock();
            match *face {
                Some(address) => Ok(address),
                None => Ok::<_, Failure>(*face.insert(start_face(core)?)),
            }
        })?;
        Ok(format!("http://{address}"))
    }
}

fn open(place: Option<String>) -> Result<Engine, Failure> {
    let (context, durable) = embedded::context(place)?;
    let store = context.open(true, durable)?;
    bury(&*store, &context.place.to_string())?;
    let node = proxy_setup::join(store.clone(), &context, "python")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("outlast")
        .enable_all()
        .build()
        .map_err(|e| Failure::new("runtime", format!("cannot start the runtime: {e}"), None))?;
    let beat = Arc::<Beat>::default();
    runtime.spawn(beat.clone().go_on(node.clone()));
    let desk = StateDesk::new(&node, context.entropy.clone(), Conflicts::default(), Writer::NoRun);
    runtime.spawn(desk.clone().keep_expiring());
    let core = Core {
        token_keys: store.token_keys()?,
        openings: Arc::default(),
        runtime: runtime.handle().clone(),
        post: Post::new(runtime.handle().clone()),
        face: Mutex::default(),
        context,
        store,
        node,
        beat,
        desk,
    };
    let place = core.context.place.to_string();
    Ok(Engine { shared: Arc::new(Shared::new(core, runtime)), place })
}

// --- Proxy in this process, for agents without a supervisor. It ends with the process.

/// Time that calls in flight have when the process ends, as they are paid for.
const DRAIN: Duration = Duration::from_secs(1);

/// Starts the proxy on a free loopback port, and returns its address. It accepts run tokens only.
fn start_face(core: &Core) -> Result<SocketAddr, Failure> {
    let entropy = &core.context.entropy;
    let secret: [u8; 32] = random(entropy.as_ref());
    let config = embedded::proxy(&core.context, secret.iter().map(|b| format!("{b:02x}")).collect())?;
    core.runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .map_err(|e| Failure::new("cannot_listen", format!("cannot listen on 127.0.0.1: {e}"), None))?;
        let address =
            listener.local_addr().map_err(|e| Failure::new("cannot_listen", e.to_string(), None))?;
        let proxy = Proxy::new(core.node.clone(), entropy, config, Some(embedded::tells_outages()))?;
        tokio::spawn(proxy.serve(listener, std::future::pending(), DRAIN));
        Ok(address)
    })
}

// --- Instances that this process could not deregister, because their store had failed when they were closed.
//
// While the process lives, other processes take them for alive, so they keep their runs and items. Only this process
// knows better: it declares them dead when it opens that store again.

/// Place, instance and process id of each. A process forked from that one does not own them.
static ORPHANS: Mutex<Vec<(String, InstanceNo, u32)>> = Mutex::new(Vec::new());

/// Remembers that this process no longer uses `instance` of the store at `place`, but could not deregister it there.
fn left_behind(place: String, instance: InstanceNo) {
    ORPHANS.lock().push((place, instance, std::process::id()));
}

/// Declares dead the instances left behind at `place`, before this process registers there again. Synced.
///
/// An instance whose identity is not this process's is left alone: another store may be at that place by now.
fn bury(store: &dyn Store, place: &str) -> Result<(), Error> {
    let mine = |orphan: &(String, InstanceNo, u32)| orphan.0 == place && orphan.2 == std::process::id();
    let orphans: Vec<_> = {
        let mut all = ORPHANS.lock();
        all.extract_if(.., |orphan| mine(orphan)).collect()
    };
    // Registering reports what is wrong with /proc.
    let Ok(me) = identity::of_self() else { return Ok(()) };
    for (_, no, _) in orphans {
        let found = store.instance(no)?.map(|instance| instance.identity);
        if found.is_some_and(|it| {
            (it.boot_id, it.pid, it.start_time) == (me.boot_id.clone(), me.pid, me.start_time)
        }) {
            declare_dead(store, no, false)?;
        }
    }
    Ok(())
}

// --- View of a run, as `rt.get(id)` shows it: the shape of every face, with what the package itself needs.

/// Run with its numbers in the store.
#[derive(Serialize)]
struct Viewed<'a> {
    #[serde(flatten)]
    run: RunDetail,
    no: RunNo,
    /// Envelopes that it is charged to: its own, then those above it.
    charges: &'a [EnvelopeNo],
    /// Limits that it was begun with, by unit.
    asked: Option<BTreeMap<&'static str, Option<i64>>>,
}

/// Returns the run as JSON. Errors: those of the store.
fn view_json(store: &dyn Store, view: &RunView) -> Result<String, store::Error> {
    let run = &view.run;
    let parent = run.parent.map(|no| store.run(no)).transpose()?.flatten();
    let id = run.id.as_str();
    let mut detail = RunDetail::new(view, parent.map(|parent| parent.run.id), id, store.now()?);
    if let (Some(shown), Some(halt)) = (&mut detail.halt, &run.halt) {
        // For the person whose program this is: `outlast resume` starts supervised commands only.
        shown.hint = refused_hint(halt, id);
    }
    let viewed = Viewed {
        run: detail,
        no: run.no,
        charges: &run.charges,
        asked: view.spec.limits.as_ref().map(|l| Unit::ALL.map(|u| (u.name(), l[u])).into_iter().collect()),
    };
    Ok(serde_json::json!(viewed).to_string())
}

// --- Snapshots and forks for Python.

/// Names the run's present point as a snapshot. Returns the number of the journal entry at that point. Synced. Errors:
/// `UnknownRun`.
#[pyfunction]
pub fn snapshot(py: Python<'_>, engine: &Engine, run: &str, name: String) -> PyResult<i64> {
    let core = engine.core()?;
    let seq = py.detach(|| {
        let view = Engine::view_of(&core, run)?;
        let snapshot = Snapshot { run: view.run.no, id: view.run.id, name };
        Ok::<_, Failure>(core.store.ask(snapshot, Durability::Synced).wait()?)
    })?;
    Ok(seq.0)
}

/// Forks the run from a point: an attempt's number, a moment in microseconds since the Unix epoch, or a word (the name
/// of a snapshot, else a time as text). Returns the fork's id, the same one for the same point. Synced.
#[pyfunction]
pub fn fork(
    py: Python<'_>,
    engine: &Engine,
    run: &str,
    attempt: Option<i64>,
    at_us: Option<i64>,
    word: Option<String>,
    limits: HashMap<String, i64>,
) -> PyResult<String> {
    let core = engine.core()?;
    let limits = limits_of(&limits)?;
    let id = py.detach(|| {
        let view = Engine::view_of(&core, run)?;
        let point = match (attempt, at_us, word) {
            (Some(no), ..) => Point::Attempt(AttemptNo(no)),
            (_, Some(at), _) => Point::Time(Micros(at)),
            (.., word) => fork_point(core.store.as_ref(), &view, &word.unwrap_or_default())?,
        };
        let long = || Failure::new("bad_run_id", "the fork's id would be longer than 128 characters", None);
        let id: RunId = id_of(&view.run.id, &point).ok_or_else(long)?;
        let fork = prepare(core.store.as_ref(), view.run.no, &point, id.clone(), limits)?;
        core.store.ask(InName::of(core.actor(), fork), Durability::Synced).wait()?;
        Ok::<_, Failure>(id.to_string())
    })?;
    Ok(id)
}
