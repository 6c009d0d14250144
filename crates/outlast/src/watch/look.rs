//! One look at the store: everything that a screen shows, read at one go.

use std::collections::BTreeMap;

use outlast_core::{
    journal::{Entry, approval},
    reads::{self, approvals::View, runs::RunSearch, waits::Wait},
    run::attempt::Attempt,
    store::{RunView, Store, filter::ApprovalFilter},
    words::id::{Micros, RunNo, Seq},
};

use outlast_server::api::read::gist;

use super::Panel;
use crate::program::error::CliError;

/// Most runs in the list, most entries and attempts of a run that are read, and most approvals.
const RUNS: usize = 200;
const ENTRIES: i64 = 200;
const APPROVALS: usize = 100;

/// Most entries whose gist is read, the newest ones: a screen has room for few more.
const GISTS: usize = 40;

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
    /// Spans of time in which it waited, oldest first.
    pub waits: Vec<Wait>,
    /// Newest entries, oldest first, without Outlast's own bookkeeping.
    pub entries: Vec<Entry>,
    /// What the newest of them are about, by their numbers.
    pub gists: BTreeMap<Seq, String>,
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
    let mut entries = store.entries(no, from, usize::try_from(2 * ENTRIES).unwrap_or(0))?;
    entries.retain(|e| !e.is_bookkeeping());
    let mut gists = BTreeMap::new();
    for entry in entries.iter().rev().take(GISTS) {
        gists.extend(gist::gist(store, entry)?.map(|gist| (entry.seq, gist)));
    }
    let (attempts, waits) = (store.attempts(no)?, reads::waits::list(store, no)?);
    Ok(Some(Watched { attempts, waits, entries, gists, view }))
}
