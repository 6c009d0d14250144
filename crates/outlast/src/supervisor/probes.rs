//! Watching of a run that waits: approvals that the agent asks for are printed, each once, to whoever watches; and
//! `outlast wake` of a run that waits for its provider has the provider asked at once. That order is an act in the run's
//! journal, and whoever holds the run's calls looks for it while the run waits.

use std::{collections::BTreeSet, sync::Arc};

use outlast_core::{
    journal::approval::{self, ApprovalId, Status as Is},
    reads::{self, approvals::View},
    run::{Run, Status},
    store::{self, ApprovalFilter as Filter, Store},
    words::{RunNo, Seq},
};
use outlast_server::{door::Proxy, node::HEARTBEAT};
use tokio::sync::watch;

use super::beat::Word;
use crate::{program::say::say, render::look::clean_line};

/// Name of the act that `outlast wake` records.
const WAKE: &str = "wake";

/// Longest excerpt of a question, in characters.
const EXCERPT: usize = 160;

/// Prints each pending approval once, and has the proxy probe at once whenever a person wakes the run, as long as the run
/// waits while its agent lives. Ends with the heartbeat.
pub async fn heed(store: Arc<dyn Store>, run: RunNo, mut word: watch::Receiver<Word>, proxy: Proxy) {
    let mut said: BTreeSet<ApprovalId> = BTreeSet::new();
    // Number of the run's next entry when it was looked at last; `None` while it does not wait.
    let mut seen: Option<Seq> = None;
    loop {
        let waits = word.borrow_and_update().pulse.as_ref().is_some_and(|p| p.status == Status::Waiting);
        let since = seen.take();
        if waits {
            let store = store.clone();
            let looks = move || (pending(&*store, run), look(&*store, run, since));
            // A failed read is tried again at the next beat. The heartbeat itself reports a failing store.
            let (asked, woken) =
                tokio::task::spawn_blocking(looks).await.unwrap_or((Ok(Vec::new()), Ok(None)));
            let asked = asked.unwrap_or_default();
            for view in asked.iter().rev().filter(|v| !said.contains(&v.id)) {
                say(&question(view));
            }
            said.extend(asked.iter().map(|v| v.id));
            let (next, is_woken) = woken.ok().flatten().map_or((since, false), |(next, is)| (Some(next), is));
            seen = next;
            if is_woken {
                proxy.probe();
            }
        }
        // A second question does not change the heartbeat's answer, so the wait also has a timeout.
        tokio::select! {
            changed = word.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(HEARTBEAT), if waits => {}
        }
    }
}

/// Returns the number of the run's next entry, and whether it was woken since that was `since`.
fn look(store: &dyn Store, no: RunNo, since: Option<Seq>) -> Result<Option<(Seq, bool)>, store::Error> {
    let Some(view) = store.run(no)? else { return Ok(None) };
    let next = view.run.next_seq;
    Ok(Some((next, is_woken(store, &view.run, since.unwrap_or(next))?)))
}

/// Returns whether a person has woken the run since the number of its next entry was `since`.
pub fn is_woken(store: &dyn Store, run: &Run, since: Seq) -> Result<bool, store::Error> {
    let Some(count) = usize::try_from(run.next_seq.0 - since.0).ok().filter(|count| *count > 0) else {
        return Ok(false);
    };
    let new = store.entries(run.no, Seq(since.0 - 1), count)?;
    Ok(new.iter().any(|entry| entry.act().is_some_and(|(name, _)| name == WAKE)))
}

fn pending(store: &dyn Store, run: RunNo) -> Result<Vec<View>, store::Error> {
    let filter = Filter { run: Some(run), open: true, limit: approval::MOST_PENDING };
    reads::approvals::list(store, &filter, Some(Is::Pending))
}

/// Returns an approval that is asked for, in words.
fn question(view: &View) -> String {
    let asked = format!("{} {}", view.detail.tool, String::from_utf8_lossy(&view.arguments));
    let (asked, id) = (clean_line(&asked, EXCERPT), view.id);
    format!("the agent asks for {asked}: `outlast approve {id}`, or with --deny")
}

#[cfg(test)]
mod tests {
    use outlast_core::{
        engine::{InName, Start, Tell, Word as Order},
        memory::MemoryStore,
        store::{Ask as _, Durability},
        words::{ManualClock, Micros, RunId},
    };

    use super::*;

    #[test]
    fn a_wake_is_heard_once() {
        let store = MemoryStore::new(Arc::new(ManualClock::new(Micros(1))));
        let run = store.run_verb(Start::new(RunId::new("r").unwrap()), Durability::Synced).unwrap().run;
        let mut seen = None;
        let mut looks = || {
            let (next, is_woken) = look(&store, run, seen).unwrap().unwrap();
            seen = Some(next);
            is_woken
        };
        let order =
            |word| store.run_verb(InName::of("cli:ann", Tell { run, word }), Durability::Synced).unwrap();
        order(Order::Wake);
        assert!(!looks(), "that was before it waited");
        order(Order::Wake);
        assert!(looks() && !looks());
        order(Order::Stop);
        assert!(!looks());
    }
}
