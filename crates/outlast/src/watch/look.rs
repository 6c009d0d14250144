//! One look at the store: everything that a screen shows, read at one go.

use outlast_core::{
    journal::{Entry, approval},
    reads::{self, approvals::View, runs::RunSearch},
    run::attempt::Attempt,
    store::{RunView, Store, filter::ApprovalFilter},
    words::id::{Micros, RunNo, Seq},
};

use super::Panel;
use crate::program::error::CliError;

/// Most runs in the list, most entries and attempts of a run that are read, and most approvals.
const RUNS: usize = 200;
const ENTRIES: i64 = 200;
const APPROVALS: usize = 100;

/// Rows of the store that one screen of `outlast watch` shows.
#[derive(Default)]
pub struct Look {
    pub now: Micros,
    pub runs: Vec<RunView>,
    /// Approvals that wait for a person, over all runs, newest first.
    pub approvals: Vec<View>,
    pub run: Option<Watched>,
}

/// Run with its attempts and newest entries, as the screen shows it.
pub struct Watched {
    pub view: RunView,
    pub attempts: Vec<Attempt>,
    pub entries: Vec<Entry>,
}

impl Look {
    pub(super) fn at(store: &dyn Store, place: Panel) -> Result<Look, CliError> {
        let filter = ApprovalFilter { run: None, open: true, limit: APPROVALS };
        Ok(Look {
            now: store.now()?,
            runs: match place {
                Panel::Runs => reads::runs::page(store, &RunSearch::default(), RUNS)?.runs,
                _ => Vec::new(),
            },
            approvals: reads::approvals::list(store, &filter, Some(approval::Status::Pending))?,
            run: match place {
                Panel::Run(no) => watched(store, no)?,
                _ => None,
            },
        })
    }
}

fn watched(store: &dyn Store, no: RunNo) -> Result<Option<Watched>, CliError> {
    let Some(view) = store.run(no)? else { return Ok(None) };
    let from = Seq((view.run.next_seq.0 - 1 - ENTRIES).max(0));
    let entries = store.entries(no, from, usize::try_from(2 * ENTRIES).unwrap_or(0))?;
    Ok(Some(Watched { attempts: store.attempts(no)?, entries, view }))
}
