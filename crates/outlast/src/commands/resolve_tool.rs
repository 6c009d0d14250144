//! A person's word on a tool call in doubt, for `outlast resolve`.

use outlast_core::{
    engine::tool::{ResolveTool, Said},
    journal::{Entry, Kind, State, payload::Payload},
    reads::entries,
    run::instance::Life,
    store::{self, Ask as _, Durability, RunView, Store},
    words::id::RunNo,
};
use outlast_server::mcp::message;
use serde_json::{Value, json};

use crate::{
    cli::ResolveArgs,
    program::error::CliError,
    render::{
        look::{self, Page, Paint},
        short::called,
    },
};

/// Returns the tool calls in doubt: calls that may have been made, but whose outcome nobody knows.
pub fn in_doubt(store: &dyn Store, run: RunNo) -> Result<Vec<Entry>, CliError> {
    let mut found = Vec::new();
    for entry in entries::each(store, run) {
        let entry = entry?;
        if is_doubted(store, &entry)? {
            found.push(entry);
        }
    }
    Ok(found)
}

/// Returns whether an entry is a tool call in doubt.
pub fn is_doubted(store: &dyn Store, entry: &Entry) -> Result<bool, store::Error> {
    let Some(tool) = entry.tool.as_ref().filter(|_| entry.kind == Kind::Tool) else { return Ok(false) };
    Ok(match entry.state {
        State::Unknown => true,
        State::Open if tool.is_sent() => {
            let holder = entry.instance.map(|no| store.instance(no)).transpose()?.flatten();
            holder.is_none_or(|holder| holder.life != Life::Live)
        }
        _ => false,
    })
}

/// Returns the tool call in doubt that `asked` names: by the number of its entry, or by its tool if only one call of
/// that tool is in doubt. `None` if `asked` names no tool call; it may then name a step.
pub fn meant<'a>(view: &RunView, doubted: &'a [Entry], asked: &str) -> Result<Option<&'a Entry>, CliError> {
    let id = &view.run.id;
    let refused = |message: String, hint: String| CliError::usage(message, Some(&hint));
    if let Ok(seq) = asked.parse::<i64>() {
        let found = doubted.iter().find(|e| e.seq.0 == seq);
        return found.map(Some).ok_or_else(|| {
            refused(
                format!("entry {seq} of run {id} is no tool call in doubt"),
                format!(
                    "`outlast resolve {id}` lists those in doubt; one that is being made has to end first"
                ),
            )
        });
    }
    let named = |e: &&Entry| e.tool.as_ref().is_some_and(|tool| tool.tool == asked || tool.name() == asked);
    let found: Vec<&Entry> = doubted.iter().filter(named).collect();
    match found[..] {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        _ => {
            let entries: Vec<String> = found.iter().map(|e| e.seq.to_string()).collect();
            Err(refused(
                format!("{} calls of the tool {asked:?} are in doubt", found.len()),
                format!("give the entry: {}", entries.join(", ")),
            ))
        }
    }
}

/// Records a person's decision on a tool call in doubt.
pub fn resolve(
    store: &dyn Store,
    view: &RunView,
    call: &Entry,
    args: &ResolveArgs,
    page: &mut Page,
) -> Result<(), CliError> {
    let (said, word, told) = said(args)?;
    let resolve = ResolveTool { run: view.run.no, seq: call.seq, seen: call.instance, said };
    store.ask(resolve, Durability::Synced).wait()?;
    if page.look.json {
        let object = json!({"run": view.run.id, "key": call.key, "seq": call.seq, "said": word});
        return Ok(page.json(&object)?);
    }
    let (run, key) = (page.look.paint(Paint::Strong, &called(view)), call.key.as_deref().unwrap_or_default());
    Ok(page.line(&format!("{run}  tool call {} ({}) {told}", call.seq, look::clean(key)))?)
}

/// Returns the outcome, with its word for programs and its words for people.
fn said(args: &ResolveArgs) -> Result<(Said, &'static str, &'static str), CliError> {
    let usage =
        |message: String| CliError::usage(message, Some("give --result JSON, --failed WHY, or --rerun"));
    let payload = |result: Value| Payload::encode(json!({"result": result}).to_string().as_bytes());
    if let Some(text) = &args.result {
        let value: Value = serde_json::from_str(text)
            .map_err(|e| usage(format!("--result wants JSON, a text with its quotes too: {e}")))?;
        let told = "is done: the next call like it gets the result that was given";
        return Ok((Said::Done(payload(result(value))), "result", told));
    }
    if let Some(why) = &args.failed {
        return Ok((
            Said::Failed(payload(message::failure(why))),
            "failed",
            "failed: the next call like it is told so",
        ));
    }
    if args.rerun {
        return Ok((Said::Rerun, "rerun", "had no effect: the next call like it is sent"));
    }
    Err(usage("nothing is said of the tool call".into()))
}

/// Returns a tool's result in MCP's form: unchanged if it has that form, otherwise as text and as structured
/// content.
fn result(value: Value) -> Value {
    if value.get("content").is_some_and(Value::is_array) {
        return value;
    }
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut result = message::text_result(&text);
    if value.is_object() {
        result["structuredContent"] = value;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_persons_result_takes_the_protocols_form() {
        let check = |given: Value, wanted: Value| assert_eq!(result(given), wanted);
        let own = json!({"content": [], "x": 1});
        check(own.clone(), own);
        check(json!("sent"), json!({"content": [{"type": "text", "text": "sent"}]}));
        check(
            json!({"a": 1}),
            json!({"content": [{"type": "text", "text": "{\"a\":1}"}], "structuredContent": {"a": 1}}),
        );
    }
}
