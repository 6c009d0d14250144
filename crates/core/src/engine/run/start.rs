//! Start: creates a run with its envelope. A fork begins with the journal of another run; a snapshot names an entry to
//! fork from.

use std::sync::Arc;

use crate::{
    engine::{Numbers, prelude::*, state::put::Author},
    envelope::Owner,
    journal::{Counts, Job},
    run::{
        NOBODYS, Origin, Own, Policy,
        snapshot::{AGENT, Kept, namespace},
    },
    words::bad::start_of,
};

/// Creates the run, or finds it if it exists.
///
/// Idempotent on `id`: an existing run keeps its limits, policy and spec. Synced.
/// Errors: `BadLimit` for a limit that is negative; `UnknownRun` for a parent that is not there; `RunHalted` for one that
/// was moved; `NewerRun` if a run of the command has begun that the caller has not seen, where it says which it has.
#[derive(Clone, Debug)]
pub struct Start {
    pub id: RunId,
    pub limits: Limits,
    pub policy: Policy,
    pub spec: Spec,
    pub parent: Option<RunNo>,
    pub command_key: Option<String>,
    /// Standard input of the command, which each attempt reads from its first byte; `None` if it was a terminal.
    pub stdin: Option<Payload>,
    /// Newest run with this `command_key` that the caller has read, 0 if there was none. `None` if any other may begin
    /// beside it.
    pub seen: Option<RunNo>,
}

impl Start {
    /// Builds a start without parent and limits, under the default policy.
    pub fn new(id: RunId) -> Start {
        Start {
            id,
            limits: Limits::default(),
            policy: Policy::default(),
            spec: Spec::default(),
            parent: None,
            command_key: None,
            stdin: None,
            seen: None,
        }
    }

    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![Need::Numbers, Need::RunById(self.id.clone()), Need::Budgets];
        needs.extend(self.seen.and(self.command_key.clone()).map(Need::OfCommand));
        needs.extend(self.parent.into_iter().flat_map(|parent| [Need::Run(parent), Need::Spec(parent)]));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Started, Error> {
        if let Some(run) = l.run_by_id(&self.id) {
            return Ok(Started { run: run.no, created: false, status: run.status });
        }
        for unit in Unit::ALL {
            if let Some(limit) = self.limits[unit].filter(|v| *v < 0) {
                return Err(Error::BadLimit(format!("{} must not be negative, got {limit}", unit.name())));
            }
        }
        let Numbers { run: no, envelope: own, .. } = l.numbers()?;
        let of_command = l.all::<Run>().filter(|run| run.command_key == self.command_key).map(|run| run.no);
        if let (Some(seen), Some(newest)) = (self.seen, of_command.max())
            && newest > seen
        {
            return Err(Error::NewerRun { newest: newest.0 });
        }
        let mut charges = vec![own];
        if let Some(parent) = self.parent {
            // The parent's list already holds all its ancestors: no walk, here or at admission.
            let above = l.run(parent)?;
            charges.extend(above.charges.iter().copied());
            if above.is_moved() {
                return Err(Error::RunHalted { id: above.id.to_string(), why: "moved".into() });
            }
        }
        let budgets = named_budgets(l, self.parent, &self.spec)?;
        l.envelopes.push(Row::insert(Envelope::new(own, Owner::Run(no), self.limits)));
        // A child is under its parent's rules, so that an agent cannot get around them by starting a run.
        let inherited = self.parent.and_then(|parent| l.spec(parent)?.rules.clone());
        let rules = inherited.or_else(|| self.spec.rules.clone());
        l.specs.push((no, Spec { rules, ..self.spec.clone() }));
        if let Some(payload) = &self.stdin {
            l.keep_payload(no, Seq(0), Role::Stdin, payload.clone());
        }
        l.runs.push(Row::insert(Run {
            no,
            id: self.id.clone(),
            status: Status::Interrupted,
            halt: None,
            error: None,
            parent: self.parent,
            origins: Arc::from([]),
            charges: Arc::from(charges),
            budgets,
            policy: self.policy,
            created_at: now,
            began_at: None,
            ended_at: None,
            next_seq: Seq(1),
            next_attempt: AttemptNo(1),
            fence: Fence(0),
            iteration: 0,
            explicit_loops: false,
            answers: 0,
            closed: 0,
            stop_requested: false,
            replayed: 0,
            saved_nano_usd: 0,
            command_key: self.command_key.clone(),
            job: self.spec.job.clone().map(|name| Box::new(Job { name, counts: Counts::default() })),
            turns: self.spec.looping().map(|_| Box::default()),
            wake_at: None,
            approvals: None,
            own: Own::default(),
        }));
        Ok(Started { run: RunNo(no.0), created: true, status: Status::Interrupted })
    }
}

/// Returns a new run's named budgets: those inherited from its parent, which no tag removes, and those of its tags. Needs
/// `Budgets`.
pub fn named_budgets(l: &Loaded, parent: Option<RunNo>, spec: &Spec) -> Result<Arc<[BudgetNo]>, Error> {
    let mut budgets = match parent {
        Some(parent) => l.run(parent)?.budgets.to_vec(),
        None => Vec::new(),
    };
    let own = l.all::<Budget>();
    budgets.extend(own.filter(|b| !b.removed && b.terms.covers(&spec.tags)).map(|b| b.no));
    budgets.sort();
    budgets.dedup();
    Ok(budgets.into())
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub run: RunNo,
    /// False when the run existed already; its limits are unchanged.
    pub created: bool,
    pub status: Status,
}

/// Creates a run whose journal begins with its origin's, up to a point; or finds the fork if it exists.
///
/// Shared entries are never copied and never paid again. The fork is a child: its cost is charged to its origin too.
/// The origin's state at that point is copied into the fork in the same commit, so that a shared step keeps the
/// state it wrote. Leases and attempts are the fork's own. Idempotent on `id`; synced.
/// Errors: `UnknownRun`; `UnknownEntry` for a point beyond the origin's journal; `BadLimit`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fork {
    pub id: RunId,
    pub origin: Origin,
    pub limits: Limits,
    /// Name that a person gave it; `None`: that of its spec.
    #[serde(default)]
    pub name: Option<String>,
    /// Spec of the fork, the origin's: a job's fork is a job, and a command's fork goes on with the command.
    /// As text, a fork has only its point: the machine of the store prepares it.
    #[serde(skip)]
    pub spec: Spec,
    /// Numbers of items that a job's fork shares with its origin, by standing.
    #[serde(skip)]
    pub counts: Counts,
    /// The origin's state at the point, as changes that write it into the fork's state.
    #[serde(skip)]
    pub state: Vec<Change>,
}

impl Fork {
    pub fn needs(&self) -> Vec<Need> {
        self.start().needs().into_iter().chain(self.state.iter().map(Change::need)).collect()
    }

    fn start(&self) -> Start {
        Start {
            limits: self.limits,
            spec: Spec { name: self.name.clone().or_else(|| self.spec.name.clone()), ..self.spec.clone() },
            parent: Some(self.origin.run),
            ..Start::new(self.id.clone())
        }
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Started, Error> {
        let origin = l.run(self.origin.run)?.clone();
        if self.origin.seq >= origin.next_seq {
            return Err(Error::UnknownEntry { id: origin.id.to_string(), seq: self.origin.seq.0 });
        }
        let started = self.start().decide(l, now)?;
        if started.created {
            let run = l.run_mut(started.run)?;
            run.origins = self.origin.chain(&origin.origins);
            run.next_seq = Seq(self.origin.seq.0 + 1);
            run.iteration = origin.iteration;
            run.turns.clone_from(&origin.turns);
            run.explicit_loops = origin.explicit_loops;
            run.policy = origin.policy;
            if let Some(job) = &mut run.job {
                job.counts = self.counts;
            }
            Change::apply(&self.state, l, Author::Attempt(started.run, NOBODYS), None, now)?;
        }
        Ok(started)
    }
}

/// Gives the current end of the run's journal a name. Returns the number of the last entry before it. A name used again
/// moves to the new point. Synced.
/// Errors: `BadSnapshot`.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub run: RunNo,
    /// Id of the run, under which its snapshots are stored.
    pub id: RunId,
    pub name: String,
}

impl Snapshot {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run), Need::State(self.key())]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Seq, Error> {
        // The name becomes a part of its forks' ids: two names must not give the same id.
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(plain) {
            return Err(Error::BadSnapshot { name: start_of(&self.name) });
        }
        let seq = Seq(l.run(self.run)?.next_seq.0 - 1);
        let kept = serde_json::to_vec(&Kept { seq, at: now }).map_err(|_| Error::NotLoaded("a snapshot"))?;
        let change = Change::set(self.key(), &kept);
        Change::apply(&[change], l, Author::Outlast, None, now)?;
        Ok(seq)
    }

    fn key(&self) -> Arc<Name> {
        Name::new(namespace(&self.id), AGENT, self.name.clone())
    }
}
