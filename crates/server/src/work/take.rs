//! Taking of a run: its attempt is claimed or joined, once nobody who lives has it.

use outlast_core::{
    engine::{self, Actor, Adopt, Claim, Claimed},
    envelope::Refusal,
    run::{Attempt, Claims, Life},
    store::{Ask as _, Durability, Error},
    words::{InstanceNo, RunNo, Slot},
};

use crate::node::{LOOK, Node, declare_dead};

/// End of the program name of an instance that is a session.
pub const OVER: &str = " over outlast serve";

/// Looks at a holder that is a session, before it counts as alive: that its client has ended is known to its server only,
/// once the connection is found closed. Together as long as a lease.
const LOOKS: u32 = 20;

/// Attempt that a program was given.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub actor: Actor,
    pub claims: Claims,
    pub iteration: i64,
    /// Whether the program claimed the attempt; false for a supervisor's, which it must not end.
    pub is_driver: bool,
}

/// Claims the driver's slot of a run, or a worker's slot of a job, as a new attempt. The inner error is the run's refusal.
///
/// If the holder's process is seen to live: `RunHeld` at once, unless `force` declares it dead. If only a missing heartbeat
/// or the holder's server can tell: after one lease, in which `may_wait` is asked before each look. If the holder is gone:
/// takes over at once.
pub fn claim(
    node: &Node,
    run: RunNo,
    slot: Slot,
    force: bool,
    may_wait: impl FnMut() -> bool,
) -> Result<Result<Taken, Refusal>, Error> {
    let (instance, claimed) = take(node, force, may_wait, |instance| {
        let restart = node.store().attempts(run)?.last().is_some_and(Attempt::costs_restart);
        let claim = Claim { run, slot, instance, label: None, fresh: false, restart };
        node.store().ask(claim, Durability::Synced).wait()
    })?;
    Ok(match claimed {
        Claimed::Refused(refusal) => Err(refusal),
        Claimed::Attempt { slot, attempt, fence, iteration, .. } => {
            let claims = Claims { run, attempt, slot, fence: Some(fence) };
            Ok(Taken { actor: Actor { run, attempt, instance }, claims, iteration, is_driver: true })
        }
    })
}

/// Joins the attempt that a token names, which its supervisor goes on driving. `iteration`: the run's own, for an attempt
/// that is not there. Errors: `RunHeld` while a process that lives has joined it.
pub fn adopt(
    node: &Node,
    claims: Claims,
    iteration: i64,
    may_wait: impl FnMut() -> bool,
) -> Result<Taken, Error> {
    let Claims { run, attempt, .. } = claims;
    let acting = |instance| Actor { run, attempt, instance };
    let (instance, _) = take(node, false, may_wait, |instance| {
        node.store().ask(Adopt { actor: acting(instance) }, Durability::Synced).wait()
    })?;
    let attempts = node.store().attempts(run)?;
    let iteration = attempts.iter().find(|a| a.no == attempt).map_or(iteration, |a| a.iteration);
    Ok(Taken { actor: acting(instance), claims, iteration, is_driver: false })
}

/// Takes a run by `ask`, once its holder is known to be dead, or was declared dead by `force`. Returns the instance that
/// has it now, and the answer.
fn take<T>(
    node: &Node,
    force: bool,
    mut may_wait: impl FnMut() -> bool,
    ask: impl Fn(InstanceNo) -> Result<T, Error>,
) -> Result<(InstanceNo, T), Error> {
    let mut inquest = node.inquest();
    let mut looks = 0;
    loop {
        let instance = node.instance();
        let (held, holder) = match ask(instance) {
            Ok(taken) => return Ok((instance, taken)),
            Err(Error::Engine(held @ engine::Error::RunHeld { instance, .. })) => (held, instance),
            Err(e) => return Err(e),
        };
        // Declares those dead that are certainly gone: the next try then succeeds.
        let is_judged = node.has_judged(&mut inquest)?;
        let Some(holder) = node.store().instance(holder)?.filter(|i| i.life == Life::Live) else { continue };
        if force {
            // The user vouches that the holder is a forgotten process: it loses its leases, and learns of it.
            declare_dead(node.store().as_ref(), holder.no, false)?;
            continue;
        }
        looks += 1;
        let may_be_gone = holder.identity.program.ends_with(OVER) && looks <= LOOKS;
        if (!may_be_gone && (node.sees(&holder) || is_judged)) || !may_wait() {
            return Err(held.into());
        }
        std::thread::sleep(LOOK);
    }
}
