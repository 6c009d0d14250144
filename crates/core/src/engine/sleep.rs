//! Sleep: a process takes over a run that sleeps, and opens nothing in it yet.

use crate::{
    engine::{Error, guard},
    id::{Fence, InstanceNo, Micros, RunNo, Slot},
    instance::Lease,
    loaded::{Loaded, Need},
    status::Status,
};

/// Takes the driver's lease of a sleeping run, so that one process wakes it, and answers until when it
/// sleeps; `None` when it does not any more.
///
/// Synced. Idempotent: the process that holds it writes nothing. Costs no attempt, no restart and no active
/// time. Errors: `RunHeld` while another live process waits for it; `InstanceDead`.
#[derive(Clone, Debug)]
pub struct Sleep {
    pub run: RunNo,
    pub instance: InstanceNo,
}

impl Sleep {
    pub fn needs(&self) -> Vec<Need> {
        vec![
            Need::Instance(self.instance),
            Need::Run(self.run),
            Need::Lease(self.run, Slot::DRIVER),
            Need::OpenAttempts(self.run),
        ]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<Option<Micros>, Error> {
        guard::live(l, self.instance)?;
        let run = l.run(self.run)?;
        let driver = guard::driver(l, run, Slot::DRIVER).map(|i| i.no);
        if let Some(holder) = guard::driver(l, run, Slot::DRIVER).filter(|i| i.no != self.instance) {
            return Err(guard::held(run, holder));
        }
        if run.status != Status::Sleeping {
            return Ok(None);
        }
        let wake_at = run.wake_at;
        if driver != Some(self.instance) {
            let run = l.run_mut(self.run)?;
            run.fence = Fence(run.fence.0 + 1);
            let fence = run.fence;
            l.put_lease(Lease { run: self.run, slot: Slot::DRIVER, instance: self.instance, fence });
        }
        Ok(wake_at)
    }
}
