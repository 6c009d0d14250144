//! Writes to the task context, and what a shell is told of it.

use std::collections::BTreeSet;

use outlast_core::{
    engine::{self, Change, PutByToken},
    run::token::{self, Claims},
    state::Committed,
    store::{self, Ask as _, Durability, RunView, Store},
    words::Micros,
};

use super::{NAMED, TaskContext, mirror::Mirror, reference::Now, task, variable};
use crate::{
    program::{
        context::Context,
        error::{CliError, InsideError},
        say::say,
        told,
    },
    render::quote,
    settings::surroundings::Surroundings,
};

/// Number of times that a write is tried if it conflicts with another process's. Each try is decided on what
/// is stored by then.
const TRIES: u32 = 11;

/// Sets keys of the task context, with the changes `more` in the same commit, and rewrites the mirror file. Durable.
pub fn write(
    store: &dyn Store,
    context: &Context,
    bearer: &Bearer,
    pairs: &[(String, String)],
    more: Vec<Change>,
) -> Result<(), CliError> {
    let mut tried = 0;
    loop {
        let (changes, progress) = changes_of(store, bearer, pairs, &more)?;
        tried += 1;
        match commit(store, context, bearer, changes, progress) {
            // Another process of the same attempt wrote in between: the changes are computed again from the new state.
            Err(CliError::Store(store::Error::Engine(engine::Error::Conflict { .. })))
                if more.is_empty() && tried < TRIES => {}
            done => return done,
        }
    }
}

fn changes_of(
    store: &dyn Store,
    bearer: &Bearer,
    pairs: &[(String, String)],
    more: &[Change],
) -> Result<(Vec<Change>, bool), CliError> {
    let run = &bearer.view.run.id;
    let stands = TaskContext::read(store, run)?;
    let since = stands.task.as_ref().map_or(Micros(0), |open| Micros(open.begun_at));
    let mut progress = false;
    for (k, v) in pairs {
        progress = progress || super::is_news(store, run, k, v, since)?;
    }
    let mut changes: Vec<Change> = pairs.iter().map(|(k, v)| super::set(run, k, v)).collect();
    if progress && more.is_empty() {
        changes.extend(task::got_on(run, &stands));
    }
    changes.extend_from_slice(more);
    Ok((changes, progress))
}

/// Commits changes of the task context, then rewrites the mirror file. `progress`: the changes are progress of the run.
pub fn commit(
    store: &dyn Store,
    context: &Context,
    bearer: &Bearer,
    changes: Vec<Change>,
    progress: bool,
) -> Result<(), CliError> {
    bearer.put(store, changes, progress)?;
    Mirror::of(&context.place, &bearer.view, &context.around)?.renew(
        store,
        &bearer.view,
        bearer.claims.attempt,
    )
}

/// Checks that no key is given twice in one command, since one of its values would be lost. Errors: `Usage`.
pub fn once_each<'a>(keys: impl Iterator<Item = &'a String>) -> Result<(), CliError> {
    let mut seen = BTreeSet::new();
    for k in keys {
        if !seen.insert(k) {
            return Err(CliError::usage(format!("{k} is given twice"), None));
        }
    }
    Ok(())
}

/// Returns shell code that unsets the variables of named keys without a value: an old one would be taken for this
/// task's.
pub fn unsets(context: &TaskContext) -> String {
    let absent = NAMED.iter().filter(|(name, _)| !context.values.contains_key(*name));
    absent.map(|(_, variable)| format!("unset {variable}\n")).collect()
}

/// Returns shell code that exports the variables of the keys that are set.
pub fn exports(context: &TaskContext) -> String {
    let mut out = String::new();
    for (k, v) in &context.values {
        if let Some(variable) = variable(k) {
            out.push_str(&quote::export(&variable, &super::text(v)));
        }
    }
    out
}

/// Prints a message for each reference whose file has changed or is gone.
pub fn tell_changed(context: &TaskContext) {
    for (name, r) in &context.references {
        let what = match r.now() {
            Now::Changed => "has changed since it was kept",
            Now::Gone => "is gone",
            Now::Same | Now::Unchecked => continue,
        };
        say(&format!("memory reference {name} ({}) {what}", r.uri));
    }
}

// --- Permission to write a run's context: the token of its attempt, from the environment.

/// Verified run token of this process, with the run that the token names.
#[derive(Clone, Debug)]
pub struct Bearer {
    pub claims: Claims,
    pub view: RunView,
}

impl Bearer {
    /// Reads the token and the run from `OUTLAST_TOKEN` and `OUTLAST_RUN_ID`. Each write checks that the token's
    /// attempt is still open.
    ///
    /// Errors: `no_run_here` if either is not set; a token that this store did not sign; `foreign_run` if the token and
    /// the id name different runs.
    pub fn of_environment(store: &dyn Store, around: &Surroundings) -> Result<Bearer, CliError> {
        let text = |name: &str| around.var(name).map(|v| v.to_string_lossy().into_owned());
        let (Some(token), Some(run)) = (text(told::TOKEN), text(told::RUN_ID)) else {
            return Err(InsideError::NoRunHere.into());
        };
        let claims = token::verify(&token, &store.token_keys()?)
            .map_err(|why| InsideError::BadToken { why, store: store.place().to_string() })?;
        match store.run(claims.run)? {
            Some(view) if view.run.id.as_str() == run => Ok(Bearer { claims, view }),
            found => Err(InsideError::ForeignRun {
                wanted: run,
                had: found.map_or_else(|| "an unknown one".into(), |v| v.run.id.to_string()),
            }
            .into()),
        }
    }

    /// Commits `changes` together, on disk before it returns. `progress`: they count as progress of the run. Without
    /// changes, commits nothing.
    pub fn put(&self, store: &dyn Store, changes: Vec<Change>, progress: bool) -> Result<(), CliError> {
        if changes.is_empty() {
            return Ok(());
        }
        let put = PutByToken { claims: self.claims, changes, transaction: None, progress };
        let _: Committed = store.run_verb(put, Durability::Synced)?;
        Ok(())
    }

    /// Returns whether a supervisor drives the run, rather than a loop's own shell.
    pub fn is_supervised(&self) -> bool {
        self.view.spec.command.is_some()
    }
}
