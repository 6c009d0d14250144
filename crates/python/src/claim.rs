//! Claims a run: as a new attempt of this process, or by joining a supervisor's attempt.

use outlast_core::{
    engine,
    run::token,
    store::{Error, RunView},
    words::Slot,
};
use outlast_server::work::take::{self, Taken};
use pyo3::{PyResult, Python};

use crate::{error::Failure, shared::Core};

/// Claims a slot of the run as a new attempt: see [`take::claim`]. A worker's slot is free while other workers keep theirs.
pub fn claim(core: &Core, view: &RunView, slot: Slot, force: bool) -> PyResult<Taken> {
    let hint = "wait until it ends, or give this one another id; your own forgotten notebook: rt.run(…, if_held=\"takeover\")";
    let claimed = taken(hint, |may_wait| take::claim(&core.node, view.run.no, slot, force, may_wait))?;
    Ok(claimed.map_err(|refusal| Failure::refused(&refusal, view.run.id.as_str()))?)
}

/// Joins the attempt that `token` names, which its supervisor goes on driving. Errors: a token of another store or run;
/// `RunHeld` if another process has joined the attempt.
pub fn adopt(core: &Core, view: &RunView, token: &str) -> PyResult<Taken> {
    let claims = token::verify(token, &core.token_keys).map_err(|e| {
        Failure::new(e.code(), e.to_string(), Some("is OUTLAST_STORE the supervisor's store?"))
    })?;
    if claims.run != view.run.no {
        let message = "OUTLAST_TOKEN is another run's than OUTLAST_RUN_ID says";
        return Err(Failure::new("foreign_run", message, None).into());
    }
    let hint = "give this process a child run: rt.run() with another id";
    taken(hint, |may_wait| take::adopt(&core.node, claims, view.run.iteration, may_wait))
}

/// Takes a run by `take`. The wait may last a whole lease, so Ctrl-C is checked meanwhile. `hint` is that of `RunHeld`.
fn taken<T>(hint: &str, take: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T, Error>) -> PyResult<T> {
    let mut interrupted = None;
    let taken = take(&mut || {
        interrupted = Python::attach(|py| py.check_signals()).err();
        interrupted.is_none()
    });
    match (interrupted, taken) {
        (Some(interrupted), _) => Err(interrupted),
        (None, Err(held @ Error::Engine(engine::Error::RunHeld { .. }))) => {
            Err(Failure { hint: Some(hint.to_owned()), ..held.into() }.into())
        }
        (None, taken) => Ok(taken.map_err(Failure::from)?),
    }
}
