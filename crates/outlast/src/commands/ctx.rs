//! `outlast ctx set | get | env | ref | refs | clear`: the task context and memory references of a run.

use outlast_core::engine::Change;

use super::prelude::*;
use crate::{
    loops::task_context::{
        self, CONTEXT, MEMORY, OPEN, TASK, TaskContext,
        reference::{self, Reference},
        write::{Bearer, commit, exports, once_each, unsets, write},
    },
    render::time::rfc3339,
};

/// Say what the agent is at, from within its run: it is kept, whatever dies
///
/// For scripts under `outlast run`, and for loops with `outlast shell-init`. What is set is on disk when the command
/// returns, all keys or none, and mirrored in the file that OUTLAST_STATE_FILE names.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CtxArgs {
    #[command(subcommand)]
    pub command: CtxCommand,
}

const EXAMPLES: &str = "\
Examples:
  outlast ctx set task_id=T-7 issue_number=1411 progress_stage=tests
  outlast ctx get progress_stage
  eval \"$(outlast ctx env)\"                 TASK_ID, ISSUE_NUMBER, …; other keys as OUTLAST_CTX_NAME
  outlast ctx ref notes=notes.md graph=mcp://memory/n42
  outlast ctx refs                          and whether a file has changed since
  outlast ctx get --of nightly              for people: any run's";

#[derive(Subcommand, Clone, Debug)]
pub enum CtxCommand {
    Set(SetArgs),
    Get(GetArgs),
    /// Print exports for a shell's eval
    Env(OfArgs),
    Ref(RefArgs),
    /// List the references, and what became of their files
    Refs(OfArgs),
    Clear(ClearArgs),
}

/// Set keys, all in one commit
#[derive(Args, Clone, Debug)]
pub struct SetArgs {
    /// A key and its value, any text; keys are a to z, 0 to 9 and _
    #[arg(value_name = "KEY=VALUE", required = true, value_parser = task_context::pair, allow_hyphen_values = true)]
    pub pairs: Vec<(String, String)>,
}

/// Print one value, or all of them
#[derive(Args, Clone, Debug)]
pub struct GetArgs {
    /// The key; without it, all
    pub key: Option<String>,
    #[command(flatten)]
    pub of: OfArgs,
}

/// Run whose context is looked at.
#[derive(Args, Clone, Debug)]
pub struct OfArgs {
    /// Another run, to look at: its id, its name, or the start of its id
    #[arg(long, value_name = "RUN")]
    pub of: Option<String>,
}

/// Keep references to what the agent remembers; of a local file also its digest
#[derive(Args, Clone, Debug)]
pub struct RefArgs {
    /// A name and any reference: a file, a URL, mcp://…
    #[arg(value_name = "NAME=URI", required = true, value_parser = reference::pair)]
    pub references: Vec<(String, String)>,
}

/// Take keys away; without any, the whole context with its references and the task that is begun
#[derive(Args, Clone, Debug)]
pub struct ClearArgs {
    /// The keys
    #[arg(value_name = "KEY", value_parser = task_context::key)]
    pub keys: Vec<String>,
}

/// Most characters of a value that are shown in one line.
const WIDTH: usize = 100;

pub fn ctx(args: &CtxArgs, Desk { store, context, page, .. }: Desk) -> Result {
    match &args.command {
        CtxCommand::Set(args) => set(store, args, context),
        CtxCommand::Get(args) => get(store, args, context, page),
        CtxCommand::Env(args) => env(store, args, context, page),
        CtxCommand::Ref(args) => reference(store, args, context),
        CtxCommand::Refs(args) => references(store, args, context, page),
        CtxCommand::Clear(args) => clear(store, args, context),
    }
}

fn set(store: &dyn Store, args: &SetArgs, context: &Context) -> Result {
    let bearer = Bearer::of_environment(store, &context.around)?;
    once_each(args.pairs.iter().map(|(k, _)| k))?;
    write(store, context, &bearer, &args.pairs, Vec::new())
}

/// Returns the run that is named, or else the run that this process belongs to.
fn looked_at(store: &dyn Store, of: &OfArgs, context: &Context) -> Result<RunView> {
    match &of.of {
        Some(asked) => find::run(store, asked),
        None => Ok(Bearer::of_environment(store, &context.around)?.view),
    }
}

fn get(store: &dyn Store, args: &GetArgs, context: &Context, page: &mut Page) -> Result {
    let view = looked_at(store, &args.of, context)?;
    let found = TaskContext::read(store, &view.run.id)?;
    if let Some(asked) = &args.key {
        let value = found
            .values
            .get(asked)
            .ok_or_else(|| CommandError::NotInContext { run: called(&view), key: asked.clone() })?;
        if page.look.json {
            return Ok(page.json(value)?);
        }
        // Printed unchanged for scripts: the value is the caller's own.
        return Ok(page.line(&task_context::text(value))?);
    }
    if page.look.json {
        return Ok(page.json(&json!({
            "run": view.run.id,
            "attempt": attempt(&view).0,
            "context": found.values,
            "memory_refs": found.references,
            "task": found.task.as_ref().map(|t| json!({"task": t.task, "lives": t.lives})),
            "changed_at": found.at.map(rfc3339),
        }))?);
    }
    if found.values.is_empty() {
        return Ok(page.line("nothing is set")?);
    }
    for (k, v) in &found.values {
        page.line(&format!("{}={}", clean_line(k, WIDTH), exact_line(&task_context::text(v), WIDTH)))?;
    }
    Ok(())
}

fn attempt(view: &RunView) -> AttemptNo {
    AttemptNo(view.run.next_attempt.0 - 1)
}

fn env(store: &dyn Store, args: &OfArgs, context: &Context, page: &mut Page) -> Result {
    let view = looked_at(store, args, context)?;
    let found = TaskContext::read(store, &view.run.id)?;
    page.text(&unsets(&found))?;
    Ok(page.text(&exports(&found))?)
}

fn reference(store: &dyn Store, args: &RefArgs, context: &Context) -> Result {
    let bearer = Bearer::of_environment(store, &context.around)?;
    once_each(args.references.iter().map(|(name, _)| name))?;
    let run = &bearer.view.run.id;
    let mut changes = Vec::new();
    for (name, uri) in &args.references {
        let found = Reference::take(uri, context.around.directory())
            .map_err(|why| InputError::Reference { name: name.clone(), why })?;
        if found.names_nothing_here() {
            say(&format!(
                "reference {name}: there is no file {uri:?} here; it is kept as given, without a digest"
            ));
        }
        changes.push(task_context::put(run, MEMORY, name, &json!(found)));
    }
    commit(store, context, &bearer, changes, false)
}

fn references(store: &dyn Store, args: &OfArgs, context: &Context, page: &mut Page) -> Result {
    let view = looked_at(store, args, context)?;
    let found = TaskContext::read(store, &view.run.id)?.references;
    if page.look.json {
        let all: Vec<_> = found
            .iter()
            .map(|(name, r)| {
                json!({"name": name, "uri": r.uri, "path": r.path, "sha256": r.sha256, "now": r.now()})
            })
            .collect();
        return Ok(page.json(&json!({ "references": all }))?);
    }
    if found.is_empty() {
        return Ok(page.line("no references")?);
    }
    let mut table = Table::new(["NAME", "NOW", "REFERENCE"]);
    for (name, r) in &found {
        let cells = [clean_line(name, WIDTH), r.now().name().to_owned(), clean_line(&r.uri, WIDTH)];
        table.row(cells.map(Cell::new).to_vec());
    }
    Ok(page.text(&table.render(page.look, 0))?)
}

fn clear(store: &dyn Store, args: &ClearArgs, context: &Context) -> Result {
    let bearer = Bearer::of_environment(store, &context.around)?;
    let run = &bearer.view.run.id;
    let stands = TaskContext::read(store, run)?;
    let is_meant = |k: &&String| args.keys.is_empty() || args.keys.contains(k);
    let mut changes: Vec<Change> =
        stands.values.keys().filter(is_meant).map(|k| task_context::delete(run, CONTEXT, k)).collect();
    if args.keys.is_empty() {
        changes.extend(stands.references.keys().map(|name| task_context::delete(run, MEMORY, name)));
        changes.extend(stands.task.as_ref().map(|_| task_context::delete(run, TASK, OPEN)));
    }
    commit(store, context, &bearer, changes, false)
}
