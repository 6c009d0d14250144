//! `outlast rm RUN`: forgets one run that has ended, with its children and all that was kept of them.

use std::{fs, io, path::PathBuf};

use outlast_core::{store::Store, words::id::RunId};
use serde_json::json;

use super::gc::Families;
use crate::{
    cli::RmArgs,
    program::{
        error::{CliError, CommandError},
        find::{self, Verb},
    },
    render::{amount::some, look::Page},
};

/// Forgets a run and the runs below it, and removes their files. `directory` returns the directory of a run's logs and
/// state.
///
/// Errors: `run_not_ended`; `call_in_flight`; `run_stays` for the newest run of a store, or if a run of its family has not ended.
pub fn rm(
    store: &dyn Store,
    directory: &dyn Fn(&RunId) -> Result<PathBuf, CliError>,
    args: &RmArgs,
    page: &mut Page,
) -> Result<(), CliError> {
    let view = find::run_to(store, &args.run, Verb::Remove)?;
    let id = view.run.id.clone();
    if !view.run.status.is_ended() {
        return Err(CommandError::NotEnded { run: id.to_string(), status: view.run.status }.into());
    }
    if view.envelope.has_calls_in_flight() {
        return Err(CommandError::CallInFlight { run: id.to_string() }.into());
    }
    let mut family = Families::of(store, view.run.no)?;
    let mut gone = Vec::new();
    for no in family.going() {
        if !family.forget(store, no)? {
            let run = family.id(no).map_or_else(|| id.to_string(), |id| id.to_string());
            return Err(CommandError::RunStays { run }.into());
        }
        gone.extend(family.take(no));
    }
    if gone.is_empty() {
        return Err(CommandError::RunStays { run: id.to_string() }.into());
    }
    for run in &gone {
        match fs::remove_dir_all(directory(run)?) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
    }
    if page.look.json {
        let ids: Vec<&str> = gone.iter().map(RunId::as_str).collect();
        return Ok(page.json(&json!({ "forgotten": ids }))?);
    }
    let below = match gone.len() {
        1 => String::new(),
        n => format!(", with {} below it", some(n as i64 - 1, "run")),
    };
    Ok(page.line(&format!("{id}  deleted{below}"))?)
}
