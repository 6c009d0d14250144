//! Route of the items of a batch job.

use outlast_core::{journal::Standing, store::Page, words::id::Seq};
use outlast_view as view;
use serde::Serialize;
use serde_json::{Value, json};

use super::{exchange, words};
use crate::api::request::{Answered, ApiRequest, json};

/// Default number of items in a page. `MOST` is the largest.
const PAGE: usize = 200;
const MOST: usize = 1_000;

/// Item with its recorded value, if that was asked for.
#[derive(Serialize)]
struct ItemWithValue {
    #[serde(flatten)]
    item: view::Item,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
}

/// Answers with the newest entry of each item, in order. `standing` filters each page; pages are cut before that, so a
/// page can be short.
pub async fn items(asked: ApiRequest) -> Answered {
    let standings = words(&asked.query, "standing", &Standing::ALL, Standing::name)?;
    let after = Seq(asked.query.number("after")?.unwrap_or(0));
    let (limit, values) = (asked.query.limit(PAGE, MOST)?, asked.query.flag("values")?);
    let run = asked.run().await?.run;
    let page = Page { values, ..Page::new(after, limit + 1) };
    let mut found = asked.read(move |store| store.items(run.no, &page)).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let cursor = found.last().filter(|_| more).map(|(row, _)| row.seq);
    let one = |(row, value): &(_, Option<outlast_core::journal::payload::Payload>)| {
        let value = value.as_ref().and_then(|payload| payload.decode().ok());
        ItemWithValue { item: view::Item::new(row), value: value.map(|bytes| exchange::value(&bytes)) }
    };
    let wanted = |row: &&(outlast_core::journal::job::ItemRow, _)| {
        standings.is_empty() || standings.contains(&row.0.detail.standing)
    };
    let items: Vec<ItemWithValue> = found.iter().filter(wanted).map(one).collect();
    json(&json!({ "run": run.id, "items": items, "after": cursor }))
}
