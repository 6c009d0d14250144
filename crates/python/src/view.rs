//! View of a run, as `rt.get(id)` shows it: the shape of every face, with what the package itself needs.

use std::collections::BTreeMap;

use outlast_core::{
    envelope::Unit,
    store::{self, RunView, Store},
    words::{EnvelopeNo, RunNo},
};
use outlast_view::RunDetail;
use serde::Serialize;

use crate::error::refused_hint;

/// Run with its numbers in the store.
#[derive(Serialize)]
struct Viewed<'a> {
    #[serde(flatten)]
    run: RunDetail,
    no: RunNo,
    /// Envelopes that it is charged to: its own, then those above it.
    charges: &'a [EnvelopeNo],
    /// Limits that it was begun with, by unit.
    asked: Option<BTreeMap<&'static str, Option<i64>>>,
}

/// Returns the run as JSON. Errors: those of the store.
pub fn json(store: &dyn Store, view: &RunView) -> Result<String, store::Error> {
    let run = &view.run;
    let parent = run.parent.map(|no| store.run(no)).transpose()?.flatten();
    let id = run.id.as_str();
    let mut detail = RunDetail::new(view, parent.map(|parent| parent.run.id), id, store.now()?);
    if let (Some(shown), Some(halt)) = (&mut detail.halt, &run.halt) {
        // For the person whose program this is: `outlast resume` starts supervised commands only.
        shown.hint = refused_hint(halt, id);
    }
    let viewed = Viewed {
        run: detail,
        no: run.no,
        charges: &run.charges,
        asked: view.spec.limits.as_ref().map(|l| Unit::ALL.map(|u| (u.name(), l[u])).into_iter().collect()),
    };
    Ok(serde_json::json!(viewed).to_string())
}
