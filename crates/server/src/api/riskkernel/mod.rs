//! RiskKernel's REST surface, for its published SDK: runs, steps, checkpoints, approvals, facts.
//!
//! A run created here is a run like any other, and a run that a header created is found here.
//! The engine decides budgets, halts and counts. `docs/guides/riskkernel.md` describes how to migrate.

pub(super) mod approval;
pub(super) mod checkpoint;
pub(super) mod memory;
pub(super) mod run;

use outlast_core::{
    engine::{self, Actor, Enter, Entered},
    store::{self, Ask as _, Durability, RunView},
    words::RunNo,
};
use serde_json::json;

pub(super) use self::run::Tokens;
use super::{
    error::Error,
    request::{Answered, ApiRequest, json},
};
use crate::{
    proxy::seat::{self, Act},
    version::{COMMIT, DATE, VERSION},
};

impl ApiRequest {
    /// Reads the run that the path names, to act on it. Errors: `unknown_run`; `others_run` without a credential.
    async fn run_to(&self, act: Act) -> Result<RunView, Error> {
        let view = self.run().await?;
        if self.caller.must_be_a_person().is_err() {
            let asked = view.clone();
            self.read(move |store| seat::may(act, store, &asked)).await??;
        }
        Ok(view)
    }

    /// Finds or opens the run's attempt for callers without a label, the same one that their proxied calls use.
    async fn enter(&self, run: RunNo) -> Result<(Actor, Entered), Error> {
        let node = &self.host.node;
        let enter = |instance| {
            let enter = Enter { run, label: None, instance };
            self.host.store.ask(enter, Durability::Synced)
        };
        let mut instance = node.instance();
        let mut entered = enter(instance).await;
        if entered == Err(store::Error::Engine(engine::Error::InstanceDead)) {
            // The process was stopped for longer than its lease; it goes on under a new number.
            node.register_anew(instance).await?;
            instance = node.instance();
            entered = enter(instance).await;
        }
        let entered = entered?;
        Ok((Actor { run, attempt: entered.attempt, instance }, entered))
    }

    /// Translates the error of a run's work: a halted or cancelled run is reported in RiskKernel's terms.
    pub(in crate::api) async fn working<T>(&self, run: RunNo, done: Result<T, Error>) -> Result<T, Error> {
        let Err(why) = done else { return done };
        match self.read(move |store| store.run(run)).await? {
            Some(view) => Err(why.of_work(&view.run)),
            None => Err(why),
        }
    }
}

/// Answers that the process runs.
pub(super) async fn healthz(_: ApiRequest) -> Answered {
    json(&json!({ "status": "ok" }))
}

/// Answers with the server's version.
pub(super) async fn version(_: ApiRequest) -> Answered {
    let known = |what: Option<&'static str>| what.unwrap_or("unknown");
    json(&json!({ "version": VERSION, "commit": known(COMMIT), "date": known(DATE) }))
}
