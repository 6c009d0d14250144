//! `outlast resolve RUN STEP`: lets a person decide the outcome of a step or tool call in doubt.

use std::{collections::BTreeMap, sync::Arc};

use outlast_core::{
    engine::step::ResolveStep,
    journal::{Entry, State, payload::Payload},
    run::instance::Life,
    store::{Ask, Durability, RunView, Store},
    words::id::{RunId, RunNo, Seq},
};
use outlast_view::shape;
use serde_json::{Value, json};

use super::resolve_tool;
use crate::{
    cli::ResolveArgs,
    program::{
        error::CliError,
        find::{self, Verb},
    },
    render::{
        look::{self, Page, Paint},
        short::called,
    },
};

/// Number of steps that are read at once.
const PAGE: usize = 4096;

/// Most steps that an error lists.
const LISTED: usize = 10;

pub fn resolve(store: &dyn Store, args: &ResolveArgs, page: &mut Page) -> Result<(), CliError> {
    let view = find::run_to(store, &args.run, Verb::Change)?;
    let doubted = in_doubt(store, view.run.no)?;
    let calls = resolve_tool::in_doubt(store, view.run.no)?;
    let Some(asked) = &args.step else { return list(&view, &[doubted, calls].concat(), page) };
    if let Some(call) = resolve_tool::meant(&view, &calls, asked)? {
        return resolve_tool::resolve(store, &view, call, args, page);
    }
    let (failed, value, told) = said(args)?;
    let entry = meant(&view, &doubted, asked)?;
    let key = entry.key.clone().unwrap_or_default();
    let resolve = ResolveStep {
        run: view.run.no,
        scope: entry.scope.clone(),
        key: key.clone(),
        seen: entry.instance,
        by: None,
        value: Payload::encode(value.to_string().as_bytes()),
        failed,
    };
    let seq = store.ask(resolve, Durability::Synced).wait()?;
    if page.look.json {
        return Ok(page.json(&json!({ "run": view.run.id, "key": key, "seq": seq.0, "said": told }))?);
    }
    let name = page.look.paint(Paint::Strong, &called(&view));
    let told = match told {
        "result" => "is done, with the result that was given",
        "failed" => "failed, and will not run again",
        _ => "will run again",
    };
    page.line(&format!("{name}  step {} {told}", look::clean(&key)))?;
    Ok(page.line("  → start its program again")?)
}

/// Returns whether the step failed, its payload in the form that `doubt.py` records, and the kind of outcome.
fn said(args: &ResolveArgs) -> Result<(bool, Value, &'static str), CliError> {
    let usage =
        |message: String| CliError::usage(message, Some("give --result JSON, --failed WHY, or --rerun"));
    if let Some(text) = &args.result {
        let value: Value = serde_json::from_str(text)
            .map_err(|e| usage(format!("--result wants JSON, a text with its quotes too: {e}")))?;
        return Ok((false, json!({ "args": [], "resolved": "done", "value": value }), "result"));
    }
    if let Some(why) = &args.failed {
        let error = json!({ "type": "outlast.StepFailed", "message": why });
        return Ok((true, json!({ "args": [], "resolved": "failed", "error": error }), "failed"));
    }
    if args.rerun {
        return Ok((true, json!({ "args": [], "resolved": "rerun" }), "rerun"));
    }
    Err(usage("nothing is said of the step".into()))
}

/// Finds at-most-once steps that were begun and whose outcome is unknown.
fn in_doubt(store: &dyn Store, run: RunNo) -> Result<Vec<Entry>, CliError> {
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
    let attempts = store.attempts(run)?;
    let mut found = Vec::new();
    for seq in seqs {
        let Some(entry) = store.entry(run, seq)? else { continue };
        let is_once = entry.step.as_ref().is_some_and(|d| d.at_most_once && !d.resolved);
        let works = attempts.iter().any(|a| a.no == entry.attempt && a.is_open());
        let lives = match entry.instance {
            Some(no) if works && entry.state == State::Open => {
                store.instance(no)?.is_some_and(|i| i.life == Life::Live)
            }
            _ => false,
        };
        if is_once && !lives {
            found.push(entry);
        }
    }
    Ok(found)
}

/// Finds the one step in doubt that `asked` names, by its key or by its name.
fn meant<'a>(view: &RunView, doubted: &'a [Entry], asked: &str) -> Result<&'a Entry, CliError> {
    let key = |e: &Entry| e.key.clone().unwrap_or_default();
    // The name of an inner step is the outer step's key, a slash, and the inner step's own name.
    let is_name = |name: &str| name == asked || name.rsplit_once(")/").is_some_and(|(_, own)| own == asked);
    let named = |e: &&Entry| key(e).rsplit_once('(').is_some_and(|(name, _)| is_name(name));
    let mut found: Vec<&Entry> = doubted.iter().filter(|e| e.key.as_deref() == Some(asked)).collect();
    if found.is_empty() {
        found = doubted.iter().filter(named).collect();
    }
    let refused = |message: String, hint: String| CliError::usage(message, Some(&hint));
    let id = &view.run.id;
    match found[..] {
        [one] => Ok(one),
        [] => Err(refused(
            format!("run {id} has no step in doubt with the key or name {asked:?}"),
            format!("`outlast resolve {id}` lists those in doubt; one that runs has to end first"),
        )),
        _ => {
            let keys: Vec<String> =
                found.iter().take(LISTED).map(|e| look::clean(&key(e)).to_string()).collect();
            let count = found.len();
            Err(refused(
                format!("{count} steps in doubt have the name {asked:?}"),
                format!("give the key: {}", keys.join(", ")),
            ))
        }
    }
}

/// Returns how a step or tool call in doubt came to it.
fn came(e: &Entry) -> &'static str {
    if e.state == State::Failed { "raised" } else { "cut off" }
}

shape! {
    /// Step or tool call in doubt.
    InDoubt(run: &RunId, e: &Entry) {
        #[serde(flatten)] entry: outlast_view::Entry = outlast_view::Entry::new(run, e);
        came: &'static str = came(e);
    }
}

fn list(view: &RunView, doubted: &[Entry], page: &mut Page) -> Result<(), CliError> {
    let id = view.run.id.as_str();
    if page.look.json {
        let rows: Vec<InDoubt> = doubted.iter().map(|e| InDoubt::new(&view.run.id, e)).collect();
        return Ok(page.json(&json!({ "run": id, "in_doubt": rows }))?);
    }
    if doubted.is_empty() {
        return Ok(page.line("no step or tool call in doubt")?);
    }
    for e in doubted {
        let key = e.key.as_deref().unwrap_or_default();
        let line = format!("{}  entry {}, {} in attempt {}", look::clean(key), e.seq, came(e), e.attempt.0);
        page.line(&line)?;
    }
    Ok(page.line(&format!("  → outlast resolve {id} STEP --result JSON, --failed WHY or --rerun"))?)
}
