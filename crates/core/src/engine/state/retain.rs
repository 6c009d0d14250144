//! Retain: sets how many versions of each key a namespace keeps.

use crate::{
    engine::{
        Error,
        actor::Actor,
        loaded::{Loaded, Need},
        rule::guard,
    },
    state::{Namespace, Retention, own::Owner, run_namespace},
    words::{
        id::{Micros, Slot},
        row::Row,
    },
};

/// Sets the versions that a namespace keeps. Removes nothing itself: later changes and compaction do.
///
/// Errors: `BadKeep` when less than one version would be kept; under a run `LeaseLost` for a stale process, and
/// `ReadOnlyNamespace` for another run's namespace, and for one of Outlast's own whoever asks.
#[derive(Clone, Debug)]
pub struct Retain {
    /// Attempt that sets the rule, with its slot; `None` for a person.
    pub actor: Option<(Actor, Slot)>,
    pub namespace: String,
    pub keep: Retention,
}

impl Retain {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![Need::Namespace(self.namespace.clone())];
        needs.extend(self.actor.iter().flat_map(|(actor, slot)| guard::needs(actor, *slot)));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<(), Error> {
        if let Retention::Last(n) = self.keep
            && n < 1
        {
            return Err(Error::BadKeep { had: n });
        }
        let namespace = &self.namespace;
        let is_let_in = match (Owner::of(namespace), &self.actor) {
            (Owner::Anyone, _) | (Owner::Run, None) => true,
            (Owner::Run, Some((actor, _))) => *namespace == run_namespace(&l.run(actor.run)?.id),
            (Owner::Outlast, _) => false,
        };
        if let Some((actor, _)) = &self.actor {
            guard::is_driven(l, actor)?;
        }
        if !is_let_in {
            return Err(Error::ReadOnlyNamespace { namespace: namespace.clone() });
        }
        match l.state.namespaces.get_mut(&self.namespace) {
            Some(row) if row.value.keep == self.keep => {}
            Some(row) => row.touched().keep = self.keep,
            None => {
                let name = self.namespace.clone();
                let row = Row::insert(Namespace {
                    name: name.clone(),
                    commit: 0,
                    at: now,
                    keep: self.keep,
                    forgotten: 0,
                });
                l.state.namespaces.insert(name, row);
            }
        }
        Ok(())
    }
}
