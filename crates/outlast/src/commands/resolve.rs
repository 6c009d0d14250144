//! `outlast resolve`: lists steps and tool calls in doubt, and says what became of one.

use outlast_core::{
    engine::{ResolveStep, ResolveTool, Said},
    journal::Payload,
};
use outlast_server::mcp::message;

use super::prelude::*;

/// Say what came of steps and tool calls that were cut off and are not repeated
///
/// Neither a step that may happen at most once nor a tool call runs again by itself: nobody but a person can look
/// whether it had its effect. Without STEP those in doubt are listed. The run goes on with what was said when its
/// program is started again.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast resolve order-7\n  outlast resolve order-7 charge --result '{\"receipt\": \"A-17\"}'\n  outlast resolve order-7 charge --failed \"the card was declined\"\n  outlast resolve order-7 charge --rerun\n  outlast resolve order-7 12 --result '\"sent\"'      a tool call, by its entry"
)]
pub struct ResolveArgs {
    /// The run: its id, its name, or the start of its id
    pub run: String,
    /// The step: its key, or its name where one step of it is in doubt. The tool call: its entry's number, or its tool
    pub step: Option<String>,
    /// The step or call had its effect, and this is its result
    #[arg(long, value_name = "JSON", group = "said", requires = "step")]
    pub result: Option<String>,
    /// The step or call failed. Every later life of the run gets this failure: Python raises StepFailed
    #[arg(long, value_name = "WHY", group = "said", requires = "step")]
    pub failed: Option<String>,
    /// The step or call had no effect, and may run again
    #[arg(long, group = "said", requires = "step")]
    pub rerun: bool,
}

/// Number of steps that are read at once.
const PAGE: usize = 4096;

/// Most steps that an error lists.
const LISTED: usize = 10;

pub fn resolve(args: &ResolveArgs, Desk { store, page, .. }: Desk) -> Result {
    let view = find::run_to(store, &args.run, Verb::Change)?;
    let no = view.run.no;
    let (steps, calls) = (steps_in_doubt(store, no)?, calls_in_doubt(store, no)?);
    let Some(asked) = &args.step else { return list(&view, &[steps, calls].concat(), page) };
    let call = named_call(&view, &calls, asked)?;
    let outcome = Outcome::read(args, if call.is_some() { "tool call" } else { "step" })?;
    let ((seq, told), entry) = match call {
        Some(call) => (resolve_call(store, no, call, &outcome)?, call),
        None => {
            let step = named_step(&view, &steps, asked)?;
            (resolve_step(store, no, step, &outcome)?, step)
        }
    };
    let key = entry.key.as_deref().unwrap_or_default();
    if page.look.json {
        let object = json!({ "run": view.run.id, "key": key, "seq": seq, "said": outcome.name() });
        return Ok(page.json(&object)?);
    }
    let run = page.look.paint(Paint::Strong, &called(&view));
    if call.is_some() {
        return Ok(page.line(&format!("{run}  tool call {seq} ({}) {told}", clean(key)))?);
    }
    page.line(&format!("{run}  step {} {told}", clean(key)))?;
    Ok(page.line("  → start its program again")?)
}

/// Outcome of a step or tool call, as a person says it.
enum Outcome<'a> {
    Result(Value),
    Failed(&'a str),
    Rerun,
}

impl Outcome<'_> {
    fn read<'a>(args: &'a ResolveArgs, of: &str) -> Result<Outcome<'a>> {
        let usage =
            |message: String| CliError::usage(message, Some("give --result JSON, --failed WHY, or --rerun"));
        match (&args.result, &args.failed, args.rerun) {
            (Some(text), ..) => serde_json::from_str(text)
                .map(Outcome::Result)
                .map_err(|e| usage(format!("--result wants JSON, a text with its quotes too: {e}"))),
            (None, Some(why), _) => Ok(Outcome::Failed(why)),
            (None, None, true) => Ok(Outcome::Rerun),
            (None, None, false) => Err(usage(format!("nothing is said of the {of}"))),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Outcome::Result(_) => "result",
            Outcome::Failed(_) => "failed",
            Outcome::Rerun => "rerun",
        }
    }
}

/// Entry that has an outcome now, and what is told of it.
type Told = (Seq, &'static str);

/// Records the outcome of a step, in the form that `doubt.py` records. Returns its entry and what is told of it.
fn resolve_step(store: &dyn Store, run: RunNo, step: &Entry, outcome: &Outcome<'_>) -> Result<Told> {
    let (value, told) = match outcome {
        Outcome::Result(value) => (
            json!({ "args": [], "resolved": "done", "value": value }),
            "is done, with the result that was given",
        ),
        Outcome::Failed(why) => {
            let error = json!({ "type": "outlast.StepFailed", "message": why });
            (json!({ "args": [], "resolved": "failed", "error": error }), "failed, and will not run again")
        }
        Outcome::Rerun => (json!({ "args": [], "resolved": "rerun" }), "will run again"),
    };
    let resolve = ResolveStep {
        run,
        scope: step.scope.clone(),
        key: step.key.clone().unwrap_or_default(),
        seen: step.instance,
        by: None,
        value: Payload::encode(value.to_string().as_bytes()),
        failed: !matches!(outcome, Outcome::Result(_)),
    };
    Ok((store.ask(resolve, Durability::Synced).wait()?, told))
}

/// Records the outcome of a tool call. Returns its entry and what is told of it.
fn resolve_call(store: &dyn Store, run: RunNo, call: &Entry, outcome: &Outcome<'_>) -> Result<Told> {
    let payload = |result: Value| Payload::encode(json!({"result": result}).to_string().as_bytes());
    let (said, told) = match outcome {
        Outcome::Result(value) => (
            Said::Done(payload(result(value.clone()))),
            "is done: the next call like it gets the result that was given",
        ),
        Outcome::Failed(why) => {
            (Said::Failed(payload(message::failure(why))), "failed: the next call like it is told so")
        }
        Outcome::Rerun => (Said::Rerun, "had no effect: the next call like it is sent"),
    };
    let resolve = ResolveTool { run, seq: call.seq, seen: call.instance, said };
    store.ask(resolve, Durability::Synced).wait()?;
    Ok((call.seq, told))
}

/// Finds the steps and tool calls of a run whose outcome is unknown, and that do not happen again by themselves.
pub fn all_in_doubt(store: &dyn Store, run: RunNo) -> Result<Vec<Entry>> {
    Ok([steps_in_doubt(store, run)?, calls_in_doubt(store, run)?].concat())
}

/// Finds at-most-once steps that were begun and whose outcome is unknown.
fn steps_in_doubt(store: &dyn Store, run: RunNo) -> Result<Vec<Entry>> {
    let mut newest: BTreeMap<(Arc<str>, String), (Seq, State)> = BTreeMap::new();
    let mut after = Seq(0);
    loop {
        let page = store.steps(run, after, PAGE)?;
        let Some((last, _)) = page.last() else { break };
        after = last.seq;
        for (row, _) in page {
            newest.insert((row.scope, row.key), (row.seq, row.state));
        }
    }
    let mut seqs: Vec<Seq> =
        newest.into_values().filter(|(_, s)| *s != State::Done).map(|(seq, _)| seq).collect();
    seqs.sort_unstable();
    let mut found = Vec::new();
    for seq in seqs {
        let Some(entry) = store.entry(run, seq)? else { continue };
        let is_once = entry.step.as_ref().is_some_and(|d| d.at_most_once && !d.resolved);
        if is_once && gist::told_state(store, &entry)? != State::Open {
            found.push(entry);
        }
    }
    Ok(found)
}

/// Finds the one step in doubt that `asked` names, by its key or by its name.
fn named_step<'a>(view: &RunView, doubted: &'a [Entry], asked: &str) -> Result<&'a Entry> {
    let key = |e: &Entry| e.key.clone().unwrap_or_default();
    // The name of an inner step is the outer step's key, a slash, and the inner step's own name.
    let is_name = |name: &str| name == asked || name.rsplit_once(")/").is_some_and(|(_, own)| own == asked);
    let named = |e: &&Entry| key(e).rsplit_once('(').is_some_and(|(name, _)| is_name(name));
    let mut found: Vec<&Entry> = doubted.iter().filter(|e| e.key.as_deref() == Some(asked)).collect();
    if found.is_empty() {
        found = doubted.iter().filter(named).collect();
    }
    let id = &view.run.id;
    let (message, hint) = match found[..] {
        [one] => return Ok(one),
        [] => (
            format!("run {id} has no step in doubt with the key or name {asked:?}"),
            format!("`outlast resolve {id}` lists those in doubt; one that runs has to end first"),
        ),
        _ => {
            let keys: Vec<String> = found.iter().take(LISTED).map(|e| clean(&key(e))).collect();
            let message = format!("{} steps in doubt have the name {asked:?}", found.len());
            (message, format!("give the key: {}", keys.join(", ")))
        }
    };
    Err(CliError::usage(message, Some(&hint)))
}

/// Returns how a step or tool call in doubt came to it.
fn came(e: &Entry) -> &'static str {
    if e.state == State::Failed { "raised" } else { "cut off" }
}

fn list(view: &RunView, doubted: &[Entry], page: &mut Page) -> Result {
    let id = view.run.id.as_str();
    if page.look.json {
        let row = |e| with(view::Entry::new(&view.run.id, e), json!({ "came": came(e) }));
        let rows: Vec<Value> = doubted.iter().map(row).collect();
        return Ok(page.json(&json!({ "run": id, "in_doubt": rows }))?);
    }
    if doubted.is_empty() {
        return Ok(page.line("no step or tool call in doubt")?);
    }
    for e in doubted {
        let key = e.key.as_deref().unwrap_or_default();
        let line = format!("{}  entry {}, {} in attempt {}", clean(key), e.seq, came(e), e.attempt.0);
        page.line(&line)?;
    }
    Ok(page.line(&format!("  → outlast resolve {id} STEP --result JSON, --failed WHY or --rerun"))?)
}

/// Returns the tool calls in doubt: calls that may have been made, but whose outcome nobody knows.
fn calls_in_doubt(store: &dyn Store, run: RunNo) -> Result<Vec<Entry>> {
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
    Ok(entry.tool.is_some() && gist::told_state(store, entry)? == State::Unknown)
}

/// Returns the tool call in doubt that `asked` names: by the number of its entry, or by its tool if only one call of
/// that tool is in doubt. `None` if `asked` names no tool call; it may then name a step.
fn named_call<'a>(view: &RunView, doubted: &'a [Entry], asked: &str) -> Result<Option<&'a Entry>> {
    let id = &view.run.id;
    if let Ok(seq) = asked.parse::<i64>() {
        let found = doubted.iter().find(|e| e.seq.0 == seq);
        let hint =
            format!("`outlast resolve {id}` lists those in doubt; one that is being made has to end first");
        let message = format!("entry {seq} of run {id} is no tool call in doubt");
        return found.map(Some).ok_or_else(|| CliError::usage(message, Some(&hint)));
    }
    let named = |e: &&Entry| e.tool.as_ref().is_some_and(|tool| tool.tool == asked || tool.name() == asked);
    let found: Vec<&Entry> = doubted.iter().filter(named).collect();
    match found[..] {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        _ => {
            let entries: Vec<String> = found.iter().map(|e| e.seq.to_string()).collect();
            let message = format!("{} calls of the tool {asked:?} are in doubt", found.len());
            Err(CliError::usage(message, Some(&format!("give the entry: {}", entries.join(", ")))))
        }
    }
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
