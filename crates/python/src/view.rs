//! JSON view of a run, as `rt.get(id)` shows it.

use outlast_core::{envelope::unit::Unit, run::status::Status, store::RunView, words::id::Micros};
use serde_json::{Value, json};

use crate::error::refused_hint;

/// Returns the run as JSON. Units: nano-USD, tokens, counts, milliseconds; times, and `now_us`, in microseconds since
/// the Unix epoch.
pub fn json(view: &RunView, now_us: i64) -> String {
    let run = &view.run;
    let mut spent = view.envelope.spent;
    // Wall time is not stored: it is the time since the run began.
    spent[Unit::WallMs] = run.wall_ms(run.ended_at.unwrap_or(Micros(now_us)));
    json!({
        "no": run.no.0,
        "id": run.id.as_str(),
        "parent": run.parent.map(|no| no.0),
        // Own envelope first, then those above it.
        "charges": run.charges.iter().map(|no| no.0).collect::<Vec<_>>(),
        "name": view.spec.name,
        "tags": view.spec.tags,
        "status": run.status.name(),
        // A waiting run is not halted: `outlast show` tells what it waits for.
        "halt": run.halt.as_ref().filter(|_| run.status == Status::Halted).map(|halt| json!({
            "code": halt.code, "message": halt.message(), "hint": refused_hint(halt, run.id.as_str()),
        })),
        "error": run.error,
        "created_at_us": run.created_at.0,
        "started_at_us": run.began_at.map(|t| t.0),
        "ended_at_us": run.ended_at.map(|t| t.0),
        "iteration": run.iteration,
        "job": run.job.as_ref().map(|job| json!({ "name": job.name, "counts": job.counts })),
        "attempts": run.next_attempt.0 - 1,
        "stop_requested": run.stop_requested,
        "limits": by_unit(|u| view.envelope.limits[u]),
        "asked": view.spec.limits.as_ref().map(|limits| by_unit(|u| limits[u])),
        "spent": by_unit(|u| spent[u]),
        "reserved": by_unit(|u| view.envelope.reserved[u]),
        "doubt": by_unit(|u| view.envelope.doubt[u]),
    })
    .to_string()
}

fn by_unit<T: Into<Value>>(amount: impl Fn(Unit) -> T) -> Value {
    Value::Object(Unit::ALL.map(|u| (u.name().to_owned(), amount(u).into())).into_iter().collect())
}
