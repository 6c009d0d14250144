//! Fork: begins a run with the journal of another; a snapshot names an entry to fork from.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    engine::{Change, Error, Loaded, Need, Start, Started, state::put::Author},
    envelope::Limits,
    journal::Counts,
    run::{
        NOBODYS, Origin, Spec,
        snapshot::{AGENT, Kept, namespace},
    },
    state::Name,
    words::{Micros, RunId, RunNo, Seq, bad::start_of},
};

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
