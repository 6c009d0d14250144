//! Hold: takes a run's driver lease without opening an attempt.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        rule::guard,
    },
    run::{instance::Lease, status::Status},
    words::id::{Fence, InstanceNo, Micros, RunNo, Slot},
};

/// Takes the driver lease of a sleeping run, so that only one process wakes it, or of a run whose finished iteration is
/// checked against its `--until`. Returns the time until which the run sleeps, or `None` if it does not sleep.
///
/// Synced: on disk before it returns. Idempotent: the process that has the lease writes nothing. Counts no attempt, no
/// restart and no active time. Errors: `RunHeld` if another live process drives the run, asleep or not; `InstanceDead`
/// if the calling process was declared dead.
#[derive(Clone, Debug)]
pub struct Hold {
    pub run: RunNo,
    pub instance: InstanceNo,
}

impl Hold {
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
        if let Some(holder) = guard::driver(l, run, Slot::DRIVER).filter(|i| i.no != self.instance) {
            return Err(guard::held(run, holder));
        }
        let wake_at = run.wake_at.filter(|_| run.status == Status::Sleeping);
        if l.lease(self.run, Slot::DRIVER).is_none_or(|lease| lease.instance != self.instance) {
            let run = l.run_mut(self.run)?;
            run.fence = Fence(run.fence.0 + 1);
            let fence = run.fence;
            l.put_lease(Lease { run: self.run, slot: Slot::DRIVER, instance: self.instance, fence });
        }
        Ok(wake_at)
    }
}
