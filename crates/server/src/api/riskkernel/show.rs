//! JSON shapes of runs, as RiskKernel shows them.

use std::collections::BTreeMap;

use outlast_core::{
    engine::checkpoint::Used,
    reads::runs::changed_at,
    run::{Run, status::Status},
    store::{self, RunView, Store},
    words::calendar::rfc3339,
};
use outlast_view::shape;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    approval::pending,
    tokens::{Counted, Tokens},
};
use crate::api::{
    amount::{self, ShownBudget},
    approvals::show::Approval,
};

/// Run with its budget and usage, in the shape of RiskKernel's JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shown {
    id: String,
    name: String,
    status: &'static str,
    /// Code of the refusal that halted the run, or `cancelled`. Empty for a run that nothing stopped.
    halt_reason: String,
    budget: ShownBudget,
    usage: Usage,
    metadata: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pending_approval: Option<Approval>,
    created_at: String,
    updated_at: String,
}

shape! {
    /// Usage of a run. `tokens` and `dollars` include calls in doubt at their reservation.
    #[serde(rename_all = "camelCase")]
    pub Usage(used: &Used, counted: Counted) {
        tokens: i64 = used.tokens;
        prompt_tokens: u64 = counted.prompt;
        completion_tokens: u64 = counted.completion;
        dollars: Box<RawValue> = amount::dollars(used.cost_nano_usd);
        loops: i64 = used.loops;
        elapsed_seconds: i64 = used.wall_ms / 1000;
    }
}

impl Shown {
    /// Reads the facts of a run's JSON from the store. Blocks.
    pub fn of(store: &dyn Store, tokens: &Tokens, view: &RunView) -> Result<Shown, store::Error> {
        let run = &view.run;
        let now = store.now()?;
        let used = Used::of(run, &view.envelope, now);
        let awaits = run.awaits_a_person(now);
        Ok(Shown {
            id: run.id.to_string(),
            name: view.spec.name.clone().unwrap_or_default(),
            status: status(run, awaits),
            halt_reason: halt_reason(run),
            budget: ShownBudget::new(&view.envelope.limits),
            usage: Usage::new(&used, tokens.of(store, run.no)?),
            metadata: view.spec.tags.clone(),
            pending_approval: if awaits { pending(store, run.no)?.first().map(Approval::new) } else { None },
            created_at: rfc3339(run.created_at),
            updated_at: rfc3339(changed_at(store, run)?),
        })
    }
}

/// Maps a status to RiskKernel's, which are fewer: `pending` is a run that does nothing now and may go on.
fn status(run: &Run, awaits: bool) -> &'static str {
    match run.status {
        Status::Running | Status::Waiting if awaits => "waiting_approval",
        Status::Running => "running",
        Status::Interrupted | Status::Waiting | Status::Sleeping => "pending",
        status @ (Status::Halted | Status::Completed | Status::Failed | Status::Cancelled) => status.name(),
    }
}

fn halt_reason(run: &Run) -> String {
    match (&run.halt, run.status) {
        (Some(halt), _) => halt.code.clone(),
        (None, Status::Cancelled) => "cancelled".into(),
        (None, _) => String::new(),
    }
}
