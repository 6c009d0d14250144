//! An attempt this process acts in, through which steps, items, loops, checkpoints and state are written.

use std::sync::Arc;

use outlast::{
    files::{
        Files, Moment,
        history::History,
        keeper::{Occasion, Taker, Target},
        of_run,
    },
    loops::task_context::{self, mirror::Mirror},
    program::error::{CliError, FilesError},
};
use outlast_core::{
    engine::{
        self, Actor, Admission, Amend, Change, Op,
        checkpoint::{Checkpoint, Name},
    },
    envelope::Refusal,
    journal::Payload,
    run::{KeptFiles, Spec, token},
    store::{Ask as _, Durability, Error, RunView},
    words::{RunId, Seq, Slot},
};
use outlast_server::{
    node::Word,
    reservation,
    work::{
        self, Deed, Hand, How,
        take::{self, Taken},
    },
};
use parking_lot::Mutex;
use pyo3::{exceptions::PyValueError, prelude::*};

use crate::{
    error::{Failure, refused_hint},
    shared::{Core, Shared},
    ticket::Ticket,
    values::{RawChange, changes_of, encode},
};

#[pyclass(frozen, module = "outlast._native")]
pub struct OpenRun {
    shared: Arc<Shared>,
    hand: Arc<Hand>,
    actor: Actor,
    slot: Slot,
    /// Number of the run in its store.
    #[pyo3(get)]
    run: i64,
    #[pyo3(get)]
    id: String,
    /// Number of the attempt, from 1.
    #[pyo3(get)]
    attempt: i64,
    #[pyo3(get)]
    iteration: i64,
    /// Run token of this attempt.
    #[pyo3(get)]
    token: String,
    /// Whether this process drives the attempt. A supervisor's attempt must not be ended by this process.
    #[pyo3(get)]
    driven: bool,
    /// Whether earlier attempts have kept the run's files, or its supervisor does.
    #[pyo3(get)]
    has_files: bool,
    /// Taker of snapshots of the run's files; `None` if this process takes none.
    files: Mutex<Option<Taker>>,
}

impl OpenRun {
    pub fn new(shared: Arc<Shared>, core: &Core, id: RunId, taken: Taken, has_files: bool) -> OpenRun {
        let Taken { actor, claims, iteration, is_driver } = taken;
        core.beat.open(&core.node, actor.run, actor.attempt, actor.instance, is_driver);
        OpenRun {
            shared,
            actor,
            slot: claims.slot,
            run: actor.run.0,
            id: id.to_string(),
            attempt: actor.attempt.0,
            iteration,
            token: core.token_keys.first().map(|key| token::mint(key, &claims)).unwrap_or_default(),
            driven: is_driver,
            has_files,
            files: Mutex::default(),
            hand: Arc::new(Hand {
                run: actor.run,
                id,
                iteration,
                attempt: Some((actor, claims.slot)),
                openings: core.openings.clone(),
            }),
        }
    }

    /// Returns who acts in the attempt, and in which slot of the run.
    pub fn actor(&self) -> (Actor, Slot) {
        (self.actor, self.slot)
    }

    pub fn submit(&self, op: impl Into<Op>, durability: Durability) -> Result<Ticket, Failure> {
        Ok(self.shared.core()?.ticket(op, durability, Some(self.hand.clone())))
    }

    pub fn does(&self, deed: Deed) -> PyResult<Ticket> {
        let core = self.shared.core()?;
        let task = self.hand.task(core.store.as_ref(), core.context.entropy.as_ref(), deed);
        let task = task.map_err(|e| match e {
            work::Error::Store(e) => Failure::from(e).into(),
            e => PyValueError::new_err(e.to_string()),
        })?;
        Ok(core.ticket(task.op, task.durability, Some(self.hand.clone())).behind(task.parts))
    }

    /// Does a deed that changes the state. A change of the run's task context rewrites the context's mirror file.
    fn changes(&self, changes: Vec<RawChange>, deed: impl FnOnce(Vec<Change>) -> Deed) -> PyResult<Ticket> {
        let changes = changes_of(changes);
        let is_of_context = changes.iter().any(is_of_context);
        let ticket = self.does(deed(changes))?;
        if !is_of_context {
            return Ok(ticket);
        }
        let (core, run, attempt) = (self.shared.core()?, self.actor.run, self.actor.attempt);
        Ok(ticket.and_then(move || {
            let renew = || -> Result<(), CliError> {
                let Some(view) = core.store.run(run)? else { return Ok(()) };
                let mirror = Mirror::of(&core.context.place, &view, &core.context.around)?;
                mirror.renew(core.store.as_ref(), &view, attempt)
            };
            // The file is only a copy: the context itself is in the store.
            if let Err(e) = renew() {
                tracing::warn!(error = %e, "the context's mirror is not renewed");
            }
        }))
    }

    /// Returns the error of a reservation for which calls in flight hold the room.
    fn no_room(&self, refusal: &Refusal) -> Failure {
        // The rest of the run's own budget comes back when they settle.
        let hint = refusal.whose.is_some().then(|| refused_hint(refusal, &self.id));
        Failure::new(
            "admission_timeout",
            format!("run {}: no room for the reservation: {}", self.id, refusal.message()),
            Some(hint.as_deref().unwrap_or("calls in flight hold the rest of the budget")),
        )
    }
}

/// Returns whether the change is one of a run's task context.
fn is_of_context(change: &Change) -> bool {
    [task_context::CONTEXT, task_context::MEMORY].contains(&change.name.agent.as_str())
        && change.name.namespace.starts_with("run:")
}

#[pymethods]
impl OpenRun {
    /// Opens the step `key`, or finds it. Returns (seq, begun before, done, tries); the tries are -1 for a step in
    /// doubt, which is not opened. With `intent`, synced before the step begins, for steps that must not run twice;
    /// otherwise committed, which survives kill -9. `scope` and `within` are those of the item that the step
    /// belongs to. With `ahead`, a thread that waits may be answered ahead of the commit.
    #[pyo3(signature = (key, intent=false, retries=false, scope=None, within=None, ahead=false))]
    fn begin(
        &self,
        key: String,
        intent: bool,
        retries: bool,
        scope: Option<String>,
        within: Option<i64>,
        ahead: bool,
    ) -> PyResult<Ticket> {
        let begin = Deed::BeginStep { key, scope, within, at_most_once: intent, retries };
        Ok(self.does(begin)?.ahead(ahead))
    }

    /// Closes the step `seq` with its result or error. With `again`, its next try follows. Synced.
    #[pyo3(signature = (seq, value, failed=false, changes=Vec::new(), again=false))]
    fn record(
        &self,
        py: Python<'_>,
        seq: i64,
        value: &[u8],
        failed: bool,
        changes: Vec<RawChange>,
        again: bool,
    ) -> PyResult<Ticket> {
        let value = encode(py, value)?;
        self.changes(changes, |changes| Deed::Record { seq, value, failed, again, changes })
    }

    /// Saves a value under a name, of which the newest value counts. Synced.
    fn checkpoint(&self, py: Python<'_>, name: String, value: &[u8]) -> PyResult<Ticket> {
        self.does(Deed::SaveCheckpoint { name, value: encode(py, value)? })
    }

    /// Notes, in words, that requests of the run passed Outlast by. Synced.
    fn note_unmetered(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        let (core, (actor, slot)) = (self.shared.core()?, self.actor());
        let note =
            Checkpoint { actor, slot, name: Name::unmetered(), value: Payload::encode(text.as_bytes()) };
        py.detach(|| core.store.ask(note, Durability::Synced).wait()).map(drop).map_err(Failure::from)?;
        Ok(())
    }

    /// Counts a turn of the agent's loop, once per key. Returns the count. Synced.
    #[pyo3(signature = (key=None))]
    fn count_loop(&self, key: Option<String>) -> PyResult<Ticket> {
        self.does(Deed::CountLoop { key })
    }

    /// Changes the state under this attempt's fence. Synced.
    fn put(&self, changes: Vec<RawChange>) -> PyResult<Ticket> {
        self.changes(changes, |changes| Deed::Put { changes })
    }

    /// Reserves money for a call that cannot go through the proxy, and returns its entry's number. Returns None if
    /// calls in flight hold the room; on the `last` try that is the error `admission_timeout`. Synced. Errors:
    /// `BudgetExceeded`, which halts the run.
    fn reserve(
        &self,
        py: Python<'_>,
        label: &str,
        nano_usd: i64,
        tokens: i64,
        last: bool,
    ) -> PyResult<Option<i64>> {
        let core = self.shared.core()?;
        let (at, entropy) = ((self.actor, self.slot, self.iteration), core.context.entropy.as_ref());
        let admit = reservation::admission(at, label, nano_usd, tokens, entropy);
        match py.detach(|| core.store.ask(admit, Durability::Synced).wait()).map_err(Failure::from)? {
            Admission::Go { opening, .. } => {
                self.hand.openings.lock().keep(opening);
                Ok(Some(opening.seq.0))
            }
            Admission::Replay { seq } | Admission::Join { seq, .. } => Ok(Some(seq.0)),
            Admission::Refused(refusal) => Err(Failure::refused(&refusal, &self.id).into()),
            Admission::Wait { refusal } if last => Err(self.no_room(&refusal).into()),
            Admission::Wait { .. } => Ok(None),
        }
    }

    /// Settles a reservation at its actual cost. None means that the call was never sent. Synced.
    fn settle(&self, py: Python<'_>, seq: i64, nano_usd: Option<i64>, tokens: i64) -> PyResult<()> {
        let (core, opening) = (self.shared.core()?, self.hand.opening(Seq(seq)));
        let settle = reservation::settlement(opening, self.actor.attempt, nano_usd, tokens);
        py.detach(|| core.store.ask(settle, Durability::Synced).wait()).map_err(Failure::from)?;
        self.hand.openings.lock().forget(self.actor.run, Seq(seq));
        Ok(())
    }

    /// Keeps files with the attempt from now on: those of `directory`, or those that the run has kept before. With
    /// `from_last_step`, they are brought back first as the last finished step left them.
    fn keep_files(
        &self,
        py: Python<'_>,
        directory: Option<String>,
        rules: Option<FileRules>,
        from_last_step: bool,
    ) -> PyResult<()> {
        let core = self.shared.core()?;
        let actor = (self.actor, self.slot);
        let kept = || keep_files(&core, actor, self.driven, directory, rules, from_last_step);
        let keep = || kept().map_err(Failure::from);
        *self.files.lock() = Some(py.detach(keep)?);
        Ok(())
    }

    /// Takes a snapshot of the files at the end of a step or item, before that is recorded; if none are kept, does nothing.
    /// A failure is only said.
    fn take_files(&self, py: Python<'_>, key: String, is_item: bool) {
        py.detach(|| {
            if let Some(taker) = &mut *self.files.lock() {
                taker.take(end_of(key, is_item));
            }
        });
    }

    /// Returns what the attempt should do: "go on", "stop", "lost" or "away" (open nothing until the store is back).
    fn word(&self) -> PyResult<&'static str> {
        let core = self.shared.core()?;
        let word = core.beat.word(&core.node, self.actor.run, self.actor.attempt);
        if word == Word::Away {
            // A store that vanished takes no heartbeat either, and does not come back.
            core.store.check().map_err(Failure::from)?;
        }
        Ok(if word == Word::GoOn { "go on" } else { word.name() })
    }

    /// Ends the attempt: "complete", "interrupt" or "stopped" (by a person). Returns the run's status. A supervisor's
    /// attempt stays open. Synced.
    #[pyo3(signature = (how, why=None))]
    fn end(&self, py: Python<'_>, how: &str, why: Option<String>) -> PyResult<&'static str> {
        let core = self.shared.core()?;
        py.detach(|| {
            if let Some(mut taker) = self.files.lock().take() {
                taker.take(Moment::End);
            }
        });
        let active_ms = core.beat.close(&core.node, self.actor.run, self.actor.attempt);
        if !self.driven {
            return Ok("running");
        }
        let how = match how {
            "complete" => How::Complete,
            "stopped" => How::Stopped,
            _ => How::Interrupt,
        };
        let end = how.end(self.actor, active_ms, why);
        let status = py.detach(|| core.store.ask(end, Durability::Synced).wait());
        Ok(status.map_err(Failure::from)?.name())
    }
}

// --- Claims a run: as a new attempt of this process, or by joining a supervisor's attempt.

/// Claims a slot of the run as a new attempt: see [`take::claim`]. A worker's slot is free while other workers keep theirs.
pub fn claim(core: &Core, view: &RunView, slot: Slot, force: bool) -> PyResult<Taken> {
    let hint = "wait until it ends, or give this one another id; your own forgotten notebook: rt.run(…, if_held=\"takeover\")";
    let claimed = taken(hint, |may_wait| take::claim(&core.node, view.run.no, slot, force, may_wait))?;
    Ok(claimed.map_err(|refusal| Failure::refused(&refusal, view.run.id.as_str()))?)
}

/// Joins the attempt that `token` names, which its supervisor goes on driving. Errors: a token of another store or run;
/// `RunHeld` if another process has joined the attempt.
pub fn adopt(core: &Core, view: &RunView, token: &str) -> PyResult<Taken> {
    let claims = token::verify(token, &core.token_keys).map_err(|e| {
        Failure::new(e.code(), e.to_string(), Some("is OUTLAST_STORE the supervisor's store?"))
    })?;
    if claims.run != view.run.no {
        let message = "OUTLAST_TOKEN is another run's than OUTLAST_RUN_ID says";
        return Err(Failure::new("foreign_run", message, None).into());
    }
    let hint = "give this process a child run: rt.run() with another id";
    taken(hint, |may_wait| take::adopt(&core.node, claims, view.run.iteration, may_wait))
}

/// Takes a run by `take`. The wait may last a whole lease, so Ctrl-C is checked meanwhile. `hint` is that of `RunHeld`.
fn taken<T>(hint: &str, take: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T, Error>) -> PyResult<T> {
    let mut interrupted = None;
    let taken = take(&mut || {
        interrupted = Python::attach(|py| py.check_signals()).err();
        interrupted.is_none()
    });
    match (interrupted, taken) {
        (Some(interrupted), _) => Err(interrupted),
        (None, Err(held @ Error::Engine(engine::Error::RunHeld { .. }))) => {
            Err(Failure { hint: Some(hint.to_owned()), ..held.into() }.into())
        }
        (None, taken) => Ok(taken.map_err(Failure::from)?),
    }
}

// --- Files that a program keeps with its run.

/// Rules for the files of a directory that are kept: whether those that `.gitignore` names, patterns of those that are
/// not, and the most bytes of all.
pub type FileRules = (bool, Vec<String>, Option<u64>);

/// Begins to keep files with an attempt: those of `directory`, else those that the run has kept before, or that its
/// supervisor keeps. Without `rules`, those of an earlier life hold.
///
/// An attempt that this process drives (`drives`) begins with the tree of the last finished step (`from_last_step`), with
/// the newest one where that was taken on another machine, or else with what is there. Errors: `NotKept`; those of a
/// restoration. A snapshot that fails is only said.
fn keep_files(
    core: &Core,
    (actor, slot): (Actor, Slot),
    drives: bool,
    directory: Option<String>,
    rules: Option<FileRules>,
    from_last_step: bool,
) -> Result<Taker, CliError> {
    let not_kept = || FilesError::NotKept { run: format!("#{}", actor.run) };
    let mut view = core.store.run(actor.run)?.ok_or_else(not_kept)?;
    let is_supervisors = view.spec.command.as_ref().is_some_and(|c| c.supervision.files.is_some());
    if let Some(directory) = directory.filter(|_| !is_supervisors) {
        let mut files = view.spec.files.clone().unwrap_or_default();
        if let Some((ignored, exclude, max_bytes)) = rules {
            files = KeptFiles { directory: None, ignored, exclude, max_bytes };
        }
        files.directory = Some(directory);
        if view.spec.files.as_ref() != Some(&files) {
            view.spec = Spec { files: Some(files), ..view.spec };
            let amend = Amend { run: actor.run, spec: view.spec.clone(), unpriced: None };
            core.store.ask(amend, Durability::Synced).wait()?;
        }
    }
    let (kept, works_in) = of_run(&view).ok_or_else(not_kept)?;
    let history = History::read(core.store.as_ref(), actor.run)?;
    let files = Files::open(&core.context, &view.run.id, kept, works_in, true)?;
    let is_elsewhere = history.is_elsewhere(&files);
    let snapshot = match (from_last_step, is_elsewhere) {
        (true, _) => history.at_last_step(),
        (false, true) => history.newest().map(|step| step.kept.snapshot),
        (false, false) => None,
    };
    if !is_elsewhere {
        // A wrong name is told at once.
        files.check_root()?;
    }
    let mut taker = Taker::new(files, core.store.clone(), &history);
    if drives && slot == Slot::DRIVER {
        let target =
            |snapshot| Target { snapshot, is_elsewhere, known: None, force: Vec::new(), undone: Vec::new() };
        taker.begin(actor, snapshot.map(target))?;
    } else {
        taker.join(actor, slot);
        taker.take(Moment::Begin);
    }
    Ok(taker)
}

/// Returns the end of a step, or of an item, as what a snapshot is taken at.
fn end_of(key: String, is_item: bool) -> Occasion {
    let moment = if is_item { Moment::Item } else { Moment::Step };
    Occasion { moment, call: None, key: Some(key) }
}
