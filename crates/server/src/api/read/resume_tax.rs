//! Resume tax of a run: what each of its restarts bought again.

use outlast_core::{price::PriceTable, reads::entries, store::RunView};
use serde_json::json;

use crate::api::request::{Answered, ApiRequest, json};
pub use crate::proxy::resume_tax::{Restarts, Resumption, Tax, find};

/// Returns the prices that a run began with; the built-in ones if none are kept, or those are not understood.
fn prices(view: &RunView) -> PriceTable {
    let file = view.spec.prices.as_ref().and_then(|kept| kept.file.as_ref());
    file.and_then(|file| PriceTable::with_overrides(&file.text).ok()).unwrap_or_else(PriceTable::builtin)
}

/// Answers with what each restart of a run bought again, and the total.
pub(crate) async fn of_run(asked: ApiRequest) -> Answered {
    let view = asked.run().await?;
    let id = view.run.id.clone();
    let found = asked
        .read(move |store| {
            let no = view.run.no;
            find(store, no, &prices(&view), &store.attempts(no)?, entries::each(store, no))
        })
        .await?;
    json(&json!({ "run": id, "total": Tax::of(&found), "resumptions": found }))
}
