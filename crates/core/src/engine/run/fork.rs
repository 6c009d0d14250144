//! Fork: a run begins where another was.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        run::start::{Start, Started},
        state::put::Change,
    },
    envelope::unit::Limits,
    journal::job::Counts,
    run::{
        Spec,
        origin::{NOBODYS, Origin},
    },
    words::id::{Micros, RunId, Seq},
};

/// Creates a run whose journal begins with its origin's, up to a point; or finds it as it is.
///
/// What is shared is never copied and never paid again. The fork is a child: what it spends is charged to its origin,
/// too. Its state begins with what its origin knew then, in the same commit: a step that is shared stands with what it
/// wrote. Leases and attempts are its own. Idempotent on `id`; synced.
/// Errors: `UnknownRun`; `UnknownEntry` for a point beyond the origin's journal; `BadLimit`.
#[derive(Clone, Debug)]
pub struct Fork {
    pub id: RunId,
    pub origin: Origin,
    pub limits: Limits,
    /// A job's fork is a job.
    pub spec: Spec,
    /// How many finished items a job's fork shares.
    pub counts: Counts,
    /// What its origin's state was.
    pub state: Vec<Change>,
}

impl Fork {
    pub fn needs(&self) -> Vec<Need> {
        self.start().needs().into_iter().chain(self.state.iter().map(Change::need)).collect()
    }

    fn start(&self) -> Start {
        Start {
            limits: self.limits,
            spec: self.spec.clone(),
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
            run.explicit_loops = origin.explicit_loops;
            run.policy = origin.policy;
            if let Some(job) = &mut run.job {
                job.counts = self.counts;
            }
            Change::apply(&self.state, l, Some((started.run, NOBODYS)), None, now)?;
        }
        Ok(started)
    }
}
