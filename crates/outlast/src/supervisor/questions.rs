//! Approvals that the agent waits for: each is printed once, to whoever watches.

use std::{collections::BTreeSet, sync::Arc};

use outlast_core::{
    journal::approval::{self, ApprovalId, Status as Is},
    reads::{self, approvals::View},
    run::status::Status,
    store::{Store, filter::ApprovalFilter as Filter},
    words::id::RunNo,
};
use outlast_server::node::HEARTBEAT;
use tokio::sync::watch;

use super::beat::Word;
use crate::{program::say::say, render::look::clean_line};

/// Longest excerpt of a question, in characters.
const EXCERPT: usize = 160;

/// Prints each pending approval once, whenever the run waits, until the heartbeat ends.
pub async fn tell(store: Arc<dyn Store>, run: RunNo, mut word: watch::Receiver<Word>) {
    let mut said: BTreeSet<ApprovalId> = BTreeSet::new();
    loop {
        let waits = word.borrow_and_update().pulse.as_ref().is_some_and(|p| p.status == Status::Waiting);
        if waits {
            let looked = {
                let store = store.clone();
                tokio::task::spawn_blocking(move || pending(&*store, run)).await
            };
            // A failed read is tried again at the next beat. The heartbeat itself reports a failing store.
            let new = looked.ok().and_then(Result::ok).unwrap_or_default();
            for view in new.iter().rev().filter(|v| !said.contains(&v.id)) {
                say(&line(view));
            }
            said.extend(new.iter().map(|v| v.id));
        }
        // A second question does not change the heartbeat's answer, so the wait also has a timeout.
        tokio::select! {
            changed = word.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(HEARTBEAT), if waits => {}
        }
    }
}

fn pending(store: &dyn Store, run: RunNo) -> Result<Vec<View>, outlast_core::store::Error> {
    let filter = Filter { run: Some(run), open: true, limit: approval::MOST_PENDING };
    reads::approvals::list(store, &filter, Some(Is::Pending))
}

fn line(view: &View) -> String {
    let asked = format!("{} {}", view.detail.tool, String::from_utf8_lossy(&view.arguments));
    let (asked, id) = (clean_line(&asked, EXCERPT), view.id);
    format!("the agent asks for {asked}: `outlast approve {id}`, or with --deny")
}
