//! Turn of the writer: runs one group on a backend, and remembers what the next one must know.

use std::panic::{AssertUnwindSafe, catch_unwind};

use outlast_core::{
    engine::{
        self, Loaded, Need,
        op::{self, Op, Outcome},
    },
    store::{Durability, Error, load::load},
    words::{InstanceNo, Micros, OpNo},
};

use tracing::debug_span;

use super::queue::Job;
use crate::backend::{Backend, CommitFailed, DataVersion};

/// Runs groups of operations one after the other.
pub trait Run: Send {
    fn run(&mut self, group: Vec<Job>);
    /// Returns the outcome that `op`, with the number `no`, would have now; `None` if that cannot be told before it is
    /// decided. Writes nothing.
    fn foresee(&mut self, op: &Op, no: OpNo) -> Option<Result<Outcome, Error>>;
}

/// State of the writer: the backend and what it remembers between groups.
pub struct Turn<B> {
    backend: B,
    /// Instance of this process; `None` until it has registered through this store.
    instance: Option<InstanceNo>,
    /// Error that answers all operations until the store is reopened: after an I/O error, or after an unclear
    /// commit of a database that cannot resolve it later. `None` while the store works.
    refused: Option<Error>,
    /// Instance and operation of a commit whose outcome the database has not confirmed yet; `None` if there
    /// is none. Nothing is decided before.
    unclear: Option<(InstanceNo, i64)>,
    /// Rows of the last decision answered ahead. They are reused if the ground is unchanged.
    foreseen: Option<(DataVersion, Box<Loaded>)>,
}

impl<B: Backend> Turn<B> {
    pub fn new(backend: B) -> Turn<B> {
        Turn { backend, instance: None, refused: None, unclear: None, foreseen: None }
    }
}

/// Outcome of a group's transaction.
enum Fate {
    Committed(Vec<Result<Outcome, Error>>),
    /// Nothing of the group was written.
    RolledBack(Error),
    Unclear(Error),
}

impl<B: Backend> Run for Turn<B> {
    fn run(&mut self, group: Vec<Job>) {
        let _group = debug_span!("commit", operations = group.len()).entered();
        // The promises of the group are dropped by a panic, which resolves its tickets.
        let _ = self.guarded(|turn| turn.run_group(group));
    }

    fn foresee(&mut self, op: &Op, no: OpNo) -> Option<Result<Outcome, Error>> {
        self.guarded(|turn| turn.foresee_one(op, no)).flatten().transpose()
    }
}

impl<B: Backend> Turn<B> {
    /// Runs `work`. If `work` panics, the store refuses everything from then on: only a reopened backend is
    /// known to be consistent.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Result<T, Error> {
        catch_unwind(AssertUnwindSafe(|| work(self))).map_err(|_| {
            let why = "the store's writer panicked, which is a defect of Outlast".to_owned();
            self.backend.rollback();
            self.refused = Some(Error::Refused { why: why.clone() });
            Error::Refused { why }
        })
    }

    fn foresee_one(&mut self, op: &Op, no: OpNo) -> Result<Option<Outcome>, Error> {
        self.resolve()?;
        if self.backend.is_short_of_room() && !closes(op) {
            return Err(short_of_room());
        }
        let _inside = self.backend.enter();
        let needs = op.needs();
        let Some(now) = self.backend.begin_read(std::slice::from_ref(&needs))? else { return Ok(None) };
        let foreseen = load(&mut self.backend, &needs, now).and_then(|mut loaded| {
            loaded.op = no;
            let outcome = decide(op, &mut loaded, now).map_err(Error::Engine)?;
            self.foreseen = self.backend.ground().map(|ground| (ground, loaded));
            Ok(Some(outcome))
        });
        self.backend.release();
        match foreseen {
            // Rows without a ground may be of several moments, or not be all: a refusal is decided under locks.
            Err(_) if self.backend.ground().is_none() => Ok(None),
            foreseen => foreseen,
        }
    }

    fn run_group(&mut self, mut group: Vec<Job>) {
        if let Err(error) = self.resolve() {
            group.iter_mut().for_each(|job| answer(job, Err(error.clone())));
            return;
        }
        match self.try_group(&group) {
            Fate::Committed(outcomes) => {
                for (job, outcome) in group.iter_mut().zip(outcomes) {
                    answer(job, outcome);
                }
            }
            Fate::Unclear(error) => self.give_up(group, error),
            Fate::RolledBack(error) => {
                if matches!(error, Error::Full { .. }) {
                    self.backend.free_ballast();
                }
                for job in group {
                    self.run_alone(job);
                }
            }
        }
    }

    fn run_alone(&mut self, job: Job) {
        let mut one = vec![job];
        if self.refused.is_some() || self.unclear.is_some() {
            return self.run_group(one);
        }
        match self.try_group(&one) {
            Fate::Committed(outcomes) => {
                for (job, outcome) in one.iter_mut().zip(outcomes) {
                    answer(job, outcome);
                }
            }
            Fate::RolledBack(error) => {
                if matches!(error, Error::Io { .. }) {
                    self.refused = Some(refusal_after(&error));
                }
                one.iter_mut().for_each(|job| answer(job, Err(error.clone())));
            }
            Fate::Unclear(error) => self.give_up(one, error),
        }
    }

    /// Checks that the store takes work. If the outcome of an earlier commit is unclear, asks the database for it
    /// first. Errors: the store refuses all work, or the outcome cannot be determined yet.
    fn resolve(&mut self) -> Result<(), Error> {
        if let Some(error) = &self.refused {
            return Err(error.clone());
        }
        let Some((instance, last)) = self.unclear else { return Ok(()) };
        let told = self.backend.is_committed(instance, last);
        let is_committed = told.ok_or_else(|| Error::Unavailable {
            why: "it has not told yet whether an earlier commit was done".into(),
        })?;
        if is_committed {
            self.instance = Some(instance);
        }
        self.unclear = None;
        Ok(())
    }

    fn give_up(&mut self, mut group: Vec<Job>, error: Error) {
        let mut told = Error::CommitUnknown { why: error.to_string() };
        if !self.backend.tells_later() {
            let refusal = refusal_after(&error);
            // Nobody waits for the outcome of a commit to files that are gone.
            if matches!(refusal, Error::Vanished { .. }) {
                told = refusal.clone();
            }
            self.refused = Some(refusal);
        }
        group.iter_mut().for_each(|job| answer(job, Err(told.clone())));
    }

    /// Decides `job` and returns the rows as it leaves them, with its outcome.
    fn decide(
        &mut self,
        job: &Job,
        needs: &[Need],
        now: Micros,
    ) -> Result<Result<(Box<Loaded>, Outcome), engine::Error>, Error> {
        if let Some(outcome) = &job.foreseen
            && let Some((ground, loaded)) = self.foreseen.take()
            && self.backend.ground() == Some(ground)
        {
            return Ok(Ok((loaded, outcome.clone())));
        }
        let mut loaded = load(&mut self.backend, needs, now)?;
        loaded.op = job.no;
        let _operation = debug_span!("operation", op = job.op.name()).entered();
        Ok(decide(&job.op, &mut loaded, now).map(|outcome| (loaded, outcome)))
    }

    fn try_group(&mut self, group: &[Job]) -> Fate {
        // A group that is begun again is decided on what it reads then.
        loop {
            if let Some(fate) = self.try_once(group) {
                return fate;
            }
        }
    }

    /// Runs the group. `None` if it was decided on rows that others had changed, and nothing was written.
    fn try_once(&mut self, group: &[Job]) -> Option<Fate> {
        let synced = group.iter().any(|j| j.durability == Durability::Synced);
        let short = self.backend.is_short_of_room();
        let _inside = self.backend.enter();
        let needs: Vec<Vec<Need>> = group.iter().map(|job| job.op.needs()).collect();
        let now = match self.backend.begin(synced, &needs) {
            Ok(now) => now,
            Err(e) => return Some(Fate::RolledBack(e)),
        };
        let mut outcomes = Vec::with_capacity(group.len());
        let mut wrote = false;
        let mut registered = self.instance;
        for (job, needs) in group.iter().zip(&needs) {
            if short && !closes(&job.op) {
                outcomes.push(Err(short_of_room()));
                continue;
            }
            let decided = self.decide(job, needs, now).and_then(|decided| match decided {
                Err(e) => Ok(Err(Error::Engine(e))),
                Ok((loaded, outcome)) => {
                    // One that was answered ahead and comes out differently now is an opening that nobody knows.
                    if loaded.is_touched() && job.foreseen.as_ref().is_none_or(|told| *told == outcome) {
                        wrote = true;
                        self.backend.apply(loaded)?;
                    }
                    Ok(Ok(outcome))
                }
            });
            match decided {
                Ok(outcome) => {
                    if let Ok(Outcome::Registered(no)) = &outcome {
                        registered = Some(*no);
                    }
                    outcomes.push(outcome);
                }
                Err(e) => {
                    self.backend.rollback();
                    return Some(Fate::RolledBack(e));
                }
            }
        }
        if !wrote {
            self.backend.release();
            return Some(Fate::Committed(outcomes));
        }
        let last = group.iter().map(|job| job.no.0).max().unwrap_or_default();
        if let Some(instance) = registered
            && let Err(e) = self.backend.count(instance, last)
        {
            self.backend.rollback();
            return Some(Fate::RolledBack(e));
        }
        Some(match self.backend.commit() {
            Ok(()) => {
                self.instance = registered;
                Fate::Committed(outcomes)
            }
            Err(CommitFailed::RolledBack(e)) => Fate::RolledBack(e),
            Err(CommitFailed::Stale) => return None,
            Err(CommitFailed::Unclear(e)) => {
                let told = registered.and_then(|i| self.backend.is_committed(i, last));
                match told {
                    Some(true) => {
                        self.instance = registered;
                        Fate::Committed(outcomes)
                    }
                    Some(false) => Fate::RolledBack(e),
                    None => {
                        self.unclear = registered.map(|instance| (instance, last));
                        Fate::Unclear(e)
                    }
                }
            }
        })
    }
}

/// Decides `op`. A decision that panics fails alone: its rows are dropped, and nothing of it is written.
fn decide(op: &Op, loaded: &mut Loaded, now: Micros) -> Result<Outcome, engine::Error> {
    catch_unwind(AssertUnwindSafe(|| op::decide(op, loaded, now)))
        .unwrap_or(Err(engine::Error::Panicked { op: op.name() }))
}

/// Returns the answer to all operations after a failure that only a reopened store can get over.
fn refusal_after(error: &Error) -> Error {
    match error {
        Error::Vanished { .. } => error.clone(),
        _ => Error::Refused { why: error.to_string() },
    }
}

fn short_of_room() -> Error {
    Error::Full { why: "only what closes open work is taken until there is room".into() }
}

/// Returns whether `op` closes open work. Such operations are accepted even on a full disk.
fn closes(op: &Op) -> bool {
    matches!(
        op,
        Op::Settle(_)
            | Op::Record(_)
            | Op::RecordItem(_)
            | Op::ReturnItem(_)
            | Op::EndAttempt(_)
            | Op::DeclareDead(_)
            | Op::Renew(_)
            | Op::Delivered(_)
    )
}

fn answer(job: &mut Job, outcome: Result<Outcome, Error>) {
    if let Some(promise) = job.promise.take() {
        // The receiver is gone if its ticket was dropped.
        let _ = promise.send(outcome);
    }
}
