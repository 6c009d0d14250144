//! Snapshot: names a point of a run's journal.

use std::sync::Arc;

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        state::put::{Author, Change},
    },
    run::snapshot::{AGENT, Kept, namespace},
    state::Name,
    words::id::{Micros, RunId, RunNo, Seq},
};

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
            return Err(Error::BadSnapshot { name: self.name.chars().take(80).collect() });
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
