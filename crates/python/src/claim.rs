//! Claims a run: as a new attempt of this process, or by joining a supervisor's attempt.

use outlast_core::{
    engine::{
        self,
        actor::Actor,
        run::claim::{Adopt, Claim, Claimed as Answer},
    },
    run::{
        instance::{Instance, Life},
        token::{self, Claims},
    },
    store::{Ask as _, Durability, Error, RunView},
    words::id::{AttemptNo, InstanceNo, RunNo, Slot},
};
use outlast_process::identity::{self, Liveness};
use outlast_server::node::{LOOK, declare_dead};
use pyo3::{PyResult, Python};

use crate::{error::Failure, shared::Core};

/// Attempt in whose name this process acts.
pub struct Claimed {
    pub run: RunNo,
    pub id: String,
    pub attempt: AttemptNo,
    pub slot: Slot,
    pub iteration: i64,
    pub instance: InstanceNo,
    pub token: String,
    /// Whether this process claimed the attempt; false for a supervisor's attempt, which this process must not end.
    pub driven: bool,
}

/// Claims the driver's slot of the run as a new attempt.
///
/// If the holder is known to be alive: `RunHeld` at once, unless `force` declares it dead. If only a missing heartbeat
/// can tell (the holder is in another container or on another host): waits for one lease. If the holder is gone: takes
/// over at once.
pub fn claim(core: &Core, view: &RunView, force: bool) -> PyResult<Claimed> {
    let mut inquest = core.node.inquest();
    loop {
        let (held, holder) = match ask(core, view, Slot::DRIVER) {
            Ok(answer) => return Ok(answer?),
            Err(Error::Engine(held @ engine::Error::RunHeld { instance, .. })) => (held, instance),
            Err(e) => return Err(Failure::from(e).into()),
        };
        // The sweep finds holders that are certainly gone; the claim then succeeds.
        let is_judged = core.node.has_judged(&mut inquest).map_err(Failure::from)?;
        let holder = core.store.instance(holder).map_err(Failure::from)?;
        let Some(holder) = holder.filter(|i| i.life == Life::Live) else { continue };
        if force {
            // With `force`, the user vouches that the holder is a forgotten process: it loses its leases, and
            // learns of it.
            declare_dead(&*core.store, holder.no, false).map_err(Failure::from)?;
            continue;
        }
        if lives(&holder) || is_judged {
            return Err(Failure {
                hint: Some(
                    "wait until it ends, or give this one another id; your own forgotten notebook: \
                     rt.run(…, if_held=\"takeover\")"
                        .into(),
                ),
                ..held.into()
            }
            .into());
        }
        std::thread::sleep(LOOK);
        // The wait may last a whole lease, so Ctrl-C is checked meanwhile.
        Python::attach(|py| py.check_signals())?;
    }
}

/// Joins a batch job as one more worker: takes a free slot and starts an attempt in it. Other workers keep theirs.
pub fn join(core: &Core, view: &RunView) -> Result<Claimed, Failure> {
    // Work held by dead workers is free only once they are declared dead.
    core.node.sweep()?;
    ask(core, view, Slot::ANY)?
}

/// Claims `slot` of the run. The outer error is the store's, the inner one the run's refusal.
fn ask(core: &Core, view: &RunView, slot: Slot) -> Result<Result<Claimed, Failure>, Error> {
    let (run, instance) = (view.run.no, core.node.instance());
    let claim = Claim { run, slot, instance, label: None, fresh: false, restart: died(core, run)? };
    Ok(match core.store.ask(claim, Durability::Synced).wait()? {
        Answer::Refused(refusal) => Err(Failure::refused(&refusal, view.run.id.as_str())),
        Answer::Attempt { slot, attempt, fence, iteration, .. } => {
            let claims = Claims { run, attempt, slot, fence: Some(fence) };
            Ok(claimed(core, view, claims, iteration, instance, true))
        }
    })
}

/// Joins the attempt that `token` names, which its supervisor goes on driving. Errors: a token of another store or run;
/// `RunHeld` if another process has joined the attempt.
pub fn adopt(core: &Core, view: &RunView, token: &str) -> Result<Claimed, Failure> {
    let claims = token::verify(token, &core.token_keys).map_err(|e| {
        Failure::new(e.code(), e.to_string(), Some("is OUTLAST_STORE the supervisor's store?"))
    })?;
    if claims.run != view.run.no {
        return Err(Failure::new(
            "foreign_run",
            "OUTLAST_TOKEN is another run's than OUTLAST_RUN_ID says",
            None,
        ));
    }
    let instance = core.node.instance();
    let actor = Actor { run: claims.run, attempt: claims.attempt, instance };
    let ask = || core.store.ask(Adopt { actor }, Durability::Synced).wait();
    let mut adopted = ask();
    if matches!(adopted, Err(Error::Engine(engine::Error::RunHeld { .. }))) {
        // An earlier process that joined the attempt may be gone.
        core.node.await_verdicts()?;
        adopted = ask();
    }
    if let Err(held @ Error::Engine(engine::Error::RunHeld { .. })) = adopted {
        let hint = "give this process a child run: rt.run() with another id".to_owned();
        return Err(Failure { hint: Some(hint), ..held.into() });
    }
    adopted?;
    let attempts = core.store.attempts(claims.run)?;
    let iteration =
        attempts.iter().find(|a| a.no == claims.attempt).map_or(view.run.iteration, |a| a.iteration);
    Ok(claimed(core, view, claims, iteration, instance, false))
}

fn claimed(
    core: &Core,
    view: &RunView,
    claims: Claims,
    iteration: i64,
    instance: InstanceNo,
    driven: bool,
) -> Claimed {
    Claimed {
        run: claims.run,
        id: view.run.id.to_string(),
        attempt: claims.attempt,
        slot: claims.slot,
        iteration,
        instance,
        token: core.token_keys.first().map(|key| token::mint(key, &claims)).unwrap_or_default(),
        driven,
    }
}

/// Returns whether the newest attempt ended by a death, so that the next one counts as a restart.
fn died(core: &Core, run: RunNo) -> Result<bool, Error> {
    Ok(core.store.attempts(run)?.last().is_some_and(|a| a.ended_at.is_some() && a.died()))
}

/// Returns whether the holder is known to live: same boot and namespace, and its pid still belongs to it.
fn lives(holder: &Instance) -> bool {
    identity::of_self().is_ok_and(|me| identity::liveness(&me, &holder.identity) == Liveness::Alive)
}
