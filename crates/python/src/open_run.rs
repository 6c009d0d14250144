//! An attempt this process acts in, through which steps, loops, checkpoints and state are written.

use std::sync::Arc;

use outlast::{
    loops::task_context::{self, mirror::Mirror},
    program::error::CliError,
};
use outlast_core::{
    engine::{
        actor::Actor,
        call::settle::StorePart,
        checkpoint::{Checkpoint, Name, OURS},
        op::Op,
        run::end_attempt::{EndAttempt, Then},
        state::put::{Change, Put},
        step::{BeginStep, CountLoop, Record},
    },
    journal::{Opening, Role, iteration_scope},
    run::attempt::Exit,
    store::{Ask as _, Durability},
    words::id::{AttemptNo, InstanceNo, RunNo, Seq, Slot},
};
use outlast_server::beat::Word;
use pyo3::{exceptions::PyValueError, prelude::*};

use crate::{
    answer::Caller,
    call,
    claim::Claimed,
    error::Failure,
    openings::Openings,
    shared::{Core, Shared},
    ticket::Ticket,
    values::{RawChange, changes_of, encode},
};

#[pyclass(frozen, module = "outlast._native")]
pub struct OpenRun {
    shared: Arc<Shared>,
    caller: Arc<Caller>,
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
}

impl OpenRun {
    pub fn new(shared: Arc<Shared>, core: &Core, c: Claimed) -> OpenRun {
        core.beat.open(&core.node, c.run, c.attempt, c.instance, c.driven);
        OpenRun {
            shared,
            caller: Arc::new(Caller { run: c.run, id: c.id.clone(), openings: core.openings.clone() }),
            actor: Actor { run: c.run, attempt: c.attempt, instance: c.instance },
            slot: c.slot,
            run: c.run.0,
            id: c.id,
            attempt: c.attempt.0,
            iteration: c.iteration,
            token: c.token,
            driven: c.driven,
        }
    }

    pub fn actor(&self) -> Actor {
        self.actor
    }

    pub fn core(&self) -> Result<Arc<Core>, Failure> {
        self.shared.core()
    }

    pub fn slot(&self) -> Slot {
        self.slot
    }

    pub fn iteration_of(&self) -> i64 {
        self.iteration
    }

    /// Returns the opening of an entry that this process has open. Without one, a closing gets `AlreadyTaken`.
    pub fn opening(&self, seq: i64) -> Opening {
        self.caller.openings.lock().of(self.actor.run, Seq(seq))
    }

    pub fn openings(&self) -> &Openings {
        &self.caller.openings
    }

    pub fn id_of(&self) -> &str {
        &self.id
    }

    fn run_no(&self) -> RunNo {
        self.actor.run
    }

    fn instance(&self) -> InstanceNo {
        self.actor.instance
    }

    pub fn submit(&self, op: impl Into<Op>, durability: Durability) -> Result<Ticket, Failure> {
        let core = self.shared.core()?;
        Ok(core.ticket(op, durability, self.caller.clone()))
    }

    /// Returns the ticket with an action that rewrites the task context's mirror file.
    fn with_mirror(&self, ticket: Ticket) -> Result<Ticket, Failure> {
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
        let scope = scope.map_or_else(|| iteration_scope(self.iteration), Into::into);
        let (within, at_most_once) = (within.map(Seq), intent);
        let step =
            BeginStep { actor: self.actor, slot: self.slot, scope, key, within, retries, at_most_once };
        let durability = if intent { Durability::Synced } else { Durability::Committed };
        Ok(self.submit(step, durability)?.ahead(ahead))
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
        let opening = self.opening(seq);
        let (parts, value) = StorePart::before(opening, Role::Value, encode(py, value)?);
        let changes = changes_of(changes);
        let is_of_context = changes.iter().any(is_of_context);
        let record = Record { opening, value, failed, again, changes };
        let ticket = self.submit(record, Durability::Synced)?.behind(parts);
        Ok(if is_of_context { self.with_mirror(ticket)? } else { ticket })
    }

    /// Saves a value under a name, of which the newest value counts. Synced.
    fn checkpoint(&self, py: Python<'_>, name: String, value: &[u8]) -> PyResult<Ticket> {
        let reserved =
            || PyValueError::new_err(format!("a checkpoint's name cannot begin with {OURS:?}, had {name:?}"));
        let name = Name::of_agent(&*name).ok_or_else(reserved)?;
        let value = encode(py, value)?;
        Ok(self.submit(Checkpoint { actor: self.actor, slot: self.slot, name, value }, Durability::Synced)?)
    }

    /// Counts a turn of the agent's loop, once per key. Returns the count. Synced.
    #[pyo3(signature = (key=None))]
    fn count_loop(&self, key: Option<String>) -> PyResult<Ticket> {
        let turn = CountLoop { actor: self.actor, slot: self.slot, iteration: self.iteration, key };
        Ok(self.submit(turn, Durability::Synced)?)
    }

    /// Changes the state under this attempt's fence. Synced.
    fn put(&self, changes: Vec<RawChange>) -> PyResult<Ticket> {
        let put =
            Put { actor: Some((self.actor, self.slot)), changes: changes_of(changes), transaction: None };
        let is_of_context = put.changes.iter().any(is_of_context);
        let ticket = self.submit(put, Durability::Synced)?;
        Ok(if is_of_context { self.with_mirror(ticket)? } else { ticket })
    }

    /// Reserves money for a call that cannot go through the proxy, and returns its entry's number. Returns None if
    /// calls in flight hold the room, unless this is the `last` try. Synced.
    fn reserve(
        &self,
        py: Python<'_>,
        label: &str,
        nano_usd: i64,
        tokens: i64,
        last: bool,
    ) -> PyResult<Option<i64>> {
        let core = self.shared.core()?;
        let reserved = py.detach(|| call::reserve(&core, self, label, nano_usd, tokens, last))?;
        Ok(reserved.map(|seq| seq.0))
    }

    /// Settles a reservation at its actual cost. None means that the call was never sent. Synced.
    fn settle(&self, py: Python<'_>, seq: i64, nano_usd: Option<i64>, tokens: i64) -> PyResult<()> {
        let core = self.shared.core()?;
        Ok(py.detach(|| call::settle(&core, self, Seq(seq), nano_usd, tokens))?)
    }

    /// Returns what the attempt should do: "go on", "stop", "lost" or "away" (open nothing until the store is back).
    fn word(&self) -> PyResult<&'static str> {
        let core = self.shared.core()?;
        Ok(match core.beat.word(&core.node, self.run_no(), self.actor.attempt) {
            Word::GoOn => "go on",
            Word::Stop => "stop",
            Word::Lost => "lost",
            Word::Away => {
                // A store that vanished takes no heartbeat either, and does not come back.
                core.store.check().map_err(Failure::from)?;
                "away"
            }
        })
    }

    /// Ends the attempt: "complete", "interrupt", "stopped" (by a person) or "fail". Returns the run's status. A
    /// supervisor's attempt stays open. Synced.
    fn end(&self, py: Python<'_>, how: &str) -> PyResult<&'static str> {
        let core = self.shared.core()?;
        let active_ms = core.beat.close(&core.node, self.run_no(), AttemptNo(self.attempt));
        if !self.driven {
            return Ok("running");
        }
        let then = match how {
            "complete" => Then::Complete,
            _ => Then::Interrupt { by_person: how == "stopped" },
        };
        // An exception is no death: the agent is alive and reports itself that it stops here.
        let exit =
            Exit { code: (how == "complete").then_some(0), stopped: how != "complete", ..Exit::default() };
        let end = EndAttempt {
            run: self.run_no(),
            attempt: self.actor.attempt,
            instance: self.instance(),
            exit,
            active_ms,
            then,
        };
        let status = py.detach(|| core.store.ask(end, Durability::Synced).wait());
        Ok(status.map_err(Failure::from)?.name())
    }
}
