//! `outlast export JOB`: its results, a line of JSON for each, in the order of their inputs.

use outlast_core::{
    id::{RunNo, Seq},
    job::{ItemRow, Standing},
    journal::Role,
    store::{self, Store},
};
use serde_json::{Value, json};

use super::{find, inspect::each_item, jobs};
use crate::{
    cli::ExportArgs,
    error::CliError,
    render::{look::Page, time},
};

/// Results are read one by one: memory is that of the keys.
pub fn export(store: &dyn Store, args: &ExportArgs, page: &mut Page) -> Result<(), CliError> {
    let view = find::job(store, &args.job)?;
    let (run, name) = (view.run.no, jobs::name(&view));
    let mut rows: Vec<ItemRow> = Vec::new();
    each_item(store, run, |row| {
        if row.detail.standing == Standing::Done {
            rows.push(row);
        }
        Ok(())
    })?;
    rows.sort_by_key(|row| (row.detail.index, row.seq));
    for row in rows {
        page.json_line(&json!({
            "job_id": name,
            "index": row.detail.index,
            "key": row.key,
            "result": value(store, run, row.seq)?,
            "attempt": row.attempt.0,
            "at": row.closed_at.map(time::rfc3339),
            "cost_nano_usd": row.spent.cost(),
        }))?;
    }
    Ok(())
}

/// What was recorded, without the names of classes.
fn value(store: &dyn Store, run: RunNo, seq: Seq) -> Result<Value, CliError> {
    let corrupt = |what: String| store::Error::Corrupt { what: format!("the result of entry {seq}: {what}") };
    let Some(kept) = store.payload(run, seq, Role::Value)? else { return Ok(Value::Null) };
    let bytes = kept.decode().map_err(|e| corrupt(e.to_string()))?;
    let value = serde_json::from_slice(&bytes).map_err(|e| corrupt(e.to_string()))?;
    Ok(plain(value))
}

/// Values of classes by their fields, as the JSONL file has them.
fn plain(value: Value) -> Value {
    match value {
        Value::Object(mut fields) if fields.contains_key("$outlast") => {
            fields.remove("value").map_or(Value::Null, plain)
        }
        Value::Object(fields) => fields.into_iter().map(|(k, v)| (k, plain(v))).collect(),
        Value::Array(values) => values.into_iter().map(plain).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_their_fields() {
        let tagged =
            json!({"a": [{"$outlast": "m:C", "value": {"x": {"$outlast": "m:D", "value": {"y": 1}}}}]});
        assert_eq!(plain(tagged), json!({"a": [{"x": {"y": 1}}]}));
    }
}
