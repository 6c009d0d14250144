//! `outlast rm RUN`: forgets one run that has ended, with its children and all that was kept of them; `outlast rm --tag`:
//! all runs with a tag. What they have cost stays.

use std::{collections::BTreeSet, fs, io, path::PathBuf};

use outlast_core::{
    reads::runs,
    store::{RunFilter, RunView, Store},
    words::id::{RunId, RunNo},
};
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

/// Forgets runs and the runs below them, and removes their files. `directory` returns the directory of a run's logs and
/// state.
///
/// Errors: `run_stays` for the newest run of a store, or if a run of its family has not ended; of one run also
/// `run_not_ended` and `call_in_flight`. Of runs with a tag, those that can go are gone by then.
pub fn rm(
    store: &dyn Store,
    directory: &dyn Fn(&RunId) -> Result<PathBuf, CliError>,
    args: &RmArgs,
    page: &mut Page,
) -> Result<(), CliError> {
    let wanted: BTreeSet<RunNo> = match &args.tag {
        Some((key, value)) => {
            let tagged = |view: &RunView| view.spec.tags.get(key) == Some(value);
            let all = runs::each(store, RunFilter::default());
            let all = all.filter(|view| view.as_ref().map_or(true, tagged));
            all.map(|view| view.map(|view| view.run.no)).collect::<Result<_, _>>()?
        }
        None => [one(store, args.run.as_deref().unwrap_or_default())?].into(),
    };
    let mut family = Families::of(store, &wanted)?;
    let mut gone = Vec::new();
    for no in family.numbers() {
        if family.goes(no) && family.forget(store, no)? {
            gone.extend(family.take(no));
        } else {
            family.keep_above(no);
        }
    }
    for run in &gone {
        match fs::remove_dir_all(directory(run)?) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
    }
    let stays = wanted.iter().find_map(|no| family.id(*no));
    match stays {
        Some(run) if gone.is_empty() => return Err(CommandError::RunStays { run: run.to_string() }.into()),
        _ if page.look.json => {
            let ids: Vec<&str> = gone.iter().map(RunId::as_str).collect();
            page.json(&json!({ "forgotten": ids }))?;
        }
        _ => {
            let below = gone.len() as i64 - wanted.len() as i64;
            let below =
                if below > 0 { format!(", with {} below", some(below, "run")) } else { String::new() };
            match (&args.tag, gone.last()) {
                (None, Some(id)) => page.line(&format!("{id}  deleted{below}"))?,
                _ => page.line(&format!("{} deleted", some(gone.len() as i64, "run")))?,
            }
        }
    }
    match stays {
        Some(run) => Err(CommandError::RunStays { run: run.to_string() }.into()),
        None => Ok(()),
    }
}

/// Returns a run that has ended and is at rest. Errors: `run_not_ended`; `call_in_flight`.
fn one(store: &dyn Store, run: &str) -> Result<RunNo, CliError> {
    let view = find::run_to(store, run, Verb::Remove)?;
    let id = view.run.id.to_string();
    if !view.run.status.is_ended() {
        return Err(CommandError::NotEnded { run: id, status: view.run.status }.into());
    }
    match view.envelope.has_calls_in_flight() {
        true => Err(CommandError::CallInFlight { run: id }.into()),
        false => Ok(view.run.no),
    }
}
