//! Which run is meant: by id, by the start of an id, or by name.

use outlast_core::{
    id::{RunId, RunNo},
    store::{RunFilter, RunView, Store},
};

use crate::error::{Candidate, CliError};

/// How many are read at once, and how many candidates an error lists.
const PAGE: usize = 500;
const LISTED: usize = 10;

/// Finds the run that `asked` names. An exact id always wins, and is found without a search.
///
/// Errors: `NoSuchRun`; `AmbiguousRun` with the candidates, when several ids begin so or several runs
/// have the name.
pub fn run(store: &dyn Store, asked: &str) -> Result<RunView, CliError> {
    if let Ok(id) = RunId::new(asked)
        && let Some(no) = store.run_no(&id)?
        && let Some(view) = store.run(no)?
    {
        return Ok(view);
    }
    let mut found: Option<RunView> = None;
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut count = 0;
    let mut before: Option<RunNo> = None;
    loop {
        let page = store.runs(&RunFilter { before, limit: PAGE, ..RunFilter::default() })?;
        let Some(last) = page.last() else { break };
        before = Some(last.run.no);
        for view in page {
            if !is_meant(&view, asked) {
                continue;
            }
            count += 1;
            if candidates.len() < LISTED {
                candidates.push(Candidate {
                    run: view.run.id.to_string(),
                    name: view.spec.name.clone(),
                    status: view.run.status.name(),
                });
            }
            found.get_or_insert(view);
        }
    }
    let asked = || asked.chars().take(140).collect();
    match (found, count) {
        (Some(view), 1) => Ok(view),
        (None, _) => Err(CliError::NoSuchRun { asked: asked() }),
        (Some(_), _) => Err(CliError::AmbiguousRun { asked: asked(), candidates, count }),
    }
}

/// `run_` may be left away.
fn is_meant(view: &RunView, asked: &str) -> bool {
    let id = view.run.id.as_str();
    let begins = !asked.is_empty()
        && (id.starts_with(asked) || id.strip_prefix("run_").is_some_and(|rest| rest.starts_with(asked)));
    begins || view.spec.name.as_deref() == Some(asked)
}
