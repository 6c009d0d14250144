//! Progress of runs under way and of the state, for readers of the stream of events: ordinary calls, steps and writes of
//! the state make no event.
//!
//! Nothing of it is kept. A reader that comes again is told what changes from then on.

use std::collections::BTreeMap;

use outlast_core::{
    envelope::Envelope,
    reads::runs::{self, RunSearch},
    run::{Run, status::Status},
    state::Position,
    store::{self, RunView, Store},
    words::id::{Micros, RunNo},
};
use outlast_view::{
    self as view, Time,
    money::{Reserved, Spent},
    shape,
};
use serde_json::json;

pub const RUN: &str = "run_progress";
pub const STATE: &str = "state_changed";

/// Most runs whose progress is reported: the newest ones under way.
const MOST: usize = 100;

/// Rows of the runs under way and position of the state, as they were at the last call of `look`.
#[derive(Default)]
pub struct Progress(Option<Seen>);

struct Seen {
    runs: BTreeMap<RunNo, (Run, Envelope)>,
    state: Position,
}

impl Progress {
    /// Returns a message for each run under way whose row or budget has changed since the last call, or that was not
    /// under way then. The first call returns no messages. There is no message for a run that is no longer under way:
    /// that is an event of its own. A reader of all runs also gets a message when the state was
    /// written.
    pub fn look(
        &mut self,
        store: &dyn Store,
        of: Option<&RunView>,
    ) -> Result<Vec<view::Event>, store::Error> {
        let running = RunSearch { statuses: vec![Status::Running], ..RunSearch::default() };
        let found = match of {
            Some(view) => store.run(view.run.no)?.into_iter().collect(),
            None => runs::page(store, &running, MOST)?.runs,
        };
        let now = store.now()?;
        let state = if of.is_none() { store.state_position()? } else { Position::default() };
        let before = self.0.take();
        let mut rows = BTreeMap::new();
        let mut told = Vec::new();
        for view in found {
            let row = (view.run, view.envelope);
            if before.as_ref().is_some_and(|before| before.runs.get(&row.0.no) != Some(&row)) {
                told.push(message(&row.0, &row.1, now));
            }
            rows.insert(row.0.no, row);
        }
        if before.is_some_and(|before| before.state != state) {
            let about = json!({ "position": state });
            told.push(view::Event { no: None, at: Time(now), kind: STATE, run: None, seq: None, about });
        }
        self.0 = Some(Seen { runs: rows, state });
        Ok(told)
    }
}

shape! {
    /// How far a run under way is.
    RunProgress(run: &Run, e: &Envelope) {
        entries: i64 = run.next_seq.0 - 1;
        /// Number of entries that are closed.
        closed: i64 = run.closed;
        #[serde(flatten)] spent: Spent = Spent::new(e.spent.cost());
        #[serde(flatten)] reserved: Reserved = Reserved::new(e.reserved.cost());
    }
}

fn message(run: &Run, e: &Envelope, now: Micros) -> view::Event {
    let about = json!(RunProgress::new(run, e));
    view::Event { no: None, at: Time(now), kind: RUN, run: Some(run.id.clone()), seq: None, about }
}
