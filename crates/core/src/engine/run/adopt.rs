//! Adopt: lets a process of the agent act in the attempt that a supervisor drives.

use crate::{
    engine::{
        Error,
        actor::Actor,
        loaded::{Loaded, Need},
        rule::guard,
    },
    run::instance::Lease,
    words::id::{Micros, Slot},
};

/// Lets the actor's process open steps, loops and checkpoints in an attempt that another process drives.
///
/// One live process at a time: it holds the run's adopter lease under the attempt's own fence, and loses it with
/// that attempt or with its life. The supervisor still renews and ends the attempt.
/// Synced. Idempotent. Errors: `LeaseLost`; `RunHeld` while another live process has adopted the attempt.
#[derive(Clone, Debug)]
pub struct Adopt {
    pub actor: Actor,
}

impl Adopt {
    pub fn needs(&self) -> Vec<Need> {
        guard::needs(&self.actor, Slot::DRIVER).into()
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<(), Error> {
        let attempt = guard::is_driven(l, &self.actor)?;
        let run = l.run(self.actor.run)?;
        let Some(fence) = Some(attempt).filter(|a| a.slot == Slot::DRIVER).and_then(|a| a.fence) else {
            // Header attempts belong to the callers that send their label.
            return Err(Error::LeaseLost { id: run.id.to_string(), attempt: self.actor.attempt.0 });
        };
        let held = l.lease(run.no, Slot::ADOPTER).filter(|lease| lease.fence == fence);
        if let Some(lease) = held.filter(|lease| lease.instance != self.actor.instance)
            && guard::live(l, lease.instance).is_ok()
            && let Some(holder) = l.instance(lease.instance)
        {
            return Err(guard::held(run, holder));
        }
        let run = run.no;
        l.put_lease(Lease { run, slot: Slot::ADOPTER, instance: self.actor.instance, fence });
        Ok(())
    }
}
