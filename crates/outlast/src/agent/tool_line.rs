//! Tool calls of agents as `show` prints them, with their outcomes.

use outlast_core::{
    journal::{Entry, Role, State},
    store::{self, Store},
    words::{RunNo, Seq},
};
use outlast_server::api::read::gist;
use outlast_view::Time;
use serde::Serialize;
use serde_json::{Value, json};

use crate::render::time;

/// Tool call of an agent, as `outlast show` prints it: a line, or with `--json` its value.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct ToolLine {
    #[serde(skip)]
    line: String,
    value: Value,
}

/// Reads the line of a tool call's entry.
pub fn read(store: &dyn Store, run: RunNo, entry: &Entry) -> Result<ToolLine, store::Error> {
    let kept = |seq: Seq, role| -> Result<Value, store::Error> {
        let bytes = store.payload(run, seq, role)?.and_then(|kept| kept.decode().ok());
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default())
    };
    let (about, value) = (kept(entry.seq, Role::About)?, kept(entry.seq, Role::Value)?);
    let resolve = match entry.state {
        State::Unknown => format!(" (`outlast resolve RUN {}`)", entry.seq),
        _ => String::new(),
    };
    let gist = gist::gist(store, entry)?.unwrap_or_default();
    Ok(ToolLine {
        line: format!("{}  {gist}{resolve}", time::moment(entry.opened_at)),
        value: json!({
            "seq": entry.seq,
            "id": entry.tool.as_ref().map_or(&entry.key, |tool| &tool.id),
            "attempt": entry.attempt,
            "state": entry.state.name(),
            "opened_at": Time(entry.opened_at),
            "tool": about["tool"],
            "input": about["input"],
            "input_digest": about["input_digest"],
            "outcome": value["outcome"],
            "code": value["code"],
        }),
    })
}

impl ToolLine {
    pub fn line(&self) -> &str {
        &self.line
    }
}
