//! Which run a command line means: a new one, a named one, or the interrupted one of this command.

use std::{
    collections::BTreeMap,
    io::{IsTerminal as _, Read as _},
};

use outlast_core::{
    clock::random,
    digest::Digest,
    engine::start::Start,
    id::{RunId, RunNo},
    op::Durability,
    payload::Payload,
    run::{Command, Spec},
    status::Status,
    store::{Ask as _, RunFilter, RunView, Store},
};

use crate::{cli::RunArgs, context::Context, error::CliError, exit_code, keys::Keys, proxy_setup, say::say};

/// Standard input is kept up to this size.
const MAX_STDIN: u64 = 256 << 20;

/// Finds or creates the run of `outlast run`.
pub fn run(
    args: &RunArgs,
    context: &Context,
    store: &dyn Store,
    upstreams: BTreeMap<String, String>,
    keys: &Keys,
) -> Result<RunView, CliError> {
    let key = command_key(args, context);
    if let Some(id) = &args.run {
        if let Some(no) = store.run_no(id)? {
            let view = view(store, no)?;
            say_limits_stay(args, &view);
            return Ok(view);
        }
    } else if !args.new
        && let Some(view) = interrupted_of(store, &key)?
    {
        say(&format!("resuming {}, the interrupted run of this command (--new starts afresh)", view.run.id));
        say_limits_stay(args, &view);
        return Ok(view);
    }
    create(args, context, store, upstreams, keys, key)
}

pub fn view(store: &dyn Store, no: RunNo) -> Result<RunView, CliError> {
    store.run(no)?.ok_or_else(|| CliError::NoSuchRun { asked: format!("#{no}") })
}

fn say_limits_stay(args: &RunArgs, view: &RunView) {
    if args.limits.any() {
        let id = &view.run.id;
        say(&format!("{id} exists: its limits stay as they are (`outlast budget {id}` changes them)"));
    }
}

/// The one interrupted run of this command in this directory.
///
/// Errors: several are there.
fn interrupted_of(store: &dyn Store, key: &str) -> Result<Option<RunView>, CliError> {
    let filter = RunFilter { command_key: Some(key.to_owned()), limit: 200, ..RunFilter::default() };
    let found: Vec<RunView> = store
        .runs(&filter)?
        .into_iter()
        .filter(|v| matches!(v.run.status, Status::Interrupted | Status::Halted | Status::Sleeping))
        .collect();
    match found.len() {
        0 => Ok(None),
        1 => Ok(found.into_iter().next()),
        n => {
            let ids: Vec<String> =
                found.iter().take(5).map(|v| format!("{} ({})", v.run.id, v.run.status.name())).collect();
            Err(CliError::Other {
                exit: exit_code::REFUSED,
                code: "several_runs",
                message: format!("this command has {n} unfinished runs here: {}", ids.join(", ")),
                hint: Some("name one with `outlast resume RUN`, or start afresh with --new".into()),
            })
        }
    }
}

fn create(
    args: &RunArgs,
    context: &Context,
    store: &dyn Store,
    upstreams: BTreeMap<String, String>,
    keys: &Keys,
    key: String,
) -> Result<RunView, CliError> {
    let id = match &args.run {
        Some(id) => id.clone(),
        None => RunId::generate(store.now()?, random(context.entropy.as_ref())),
    };
    let chosen = args.limits.choose();
    let stdin = kept_stdin()?;
    let mut env = BTreeMap::new();
    for name in ["PATH", "HOME"].into_iter().chain(args.env.iter().map(String::as_str)) {
        match context.around.var(name).map(|v| v.to_str()) {
            Some(Some(value)) => {
                env.insert(name.to_owned(), value.to_owned());
            }
            Some(None) => {
                return Err(CliError::Usage {
                    message: format!("{name} is not plain text, and cannot be kept"),
                    hint: None,
                });
            }
            None if args.env.iter().any(|n| n == name) => {
                return Err(CliError::Usage {
                    message: format!("--env {name}: there is no such variable"),
                    hint: None,
                });
            }
            None => {}
        }
    }
    let command = Command {
        argv: args.command.clone(),
        directory: context.around.directory().to_string_lossy().into_owned(),
        umask: current_umask(),
        env,
        stdin_kept: stdin.is_some(),
    };
    let spec = Spec {
        name: args.name.clone(),
        tags: args.tags.iter().cloned().collect(),
        command: Some(command),
        keys: proxy_setup::known_keys(keys),
        upstreams,
    };
    let start = Start {
        id,
        limits: chosen.limits,
        policy: args.policy.policy(),
        spec,
        parent: None,
        command_key: Some(key),
        stdin,
    };
    let started = store.ask(start, Durability::Synced).wait()?;
    let view = view(store, started.run)?;
    let budget = match chosen.by_default {
        Some(usd) => format!("budget {usd} usd (the default; --usd changes it)"),
        None => budget_words(&view),
    };
    say(&format!("{} · {budget}", view.run.id));
    Ok(view)
}

fn budget_words(view: &RunView) -> String {
    let words: Vec<String> = outlast_core::unit::Unit::ALL
        .into_iter()
        .filter_map(|u| view.envelope.limits[u].map(|limit| u.show(limit)))
        .collect();
    if words.is_empty() { "no limits".into() } else { format!("budget {}", words.join(", ")) }
}

/// Names command and directory: typing the command again there finds the run.
fn command_key(args: &RunArgs, context: &Context) -> String {
    let mut text = context.around.directory().to_string_lossy().into_owned();
    for word in &args.command {
        text.push('\0');
        text.push_str(word);
    }
    Digest::of(text.as_bytes()).to_string()[..32].to_owned()
}

/// Standard input, when it is not a terminal and has something: each attempt reads it from its start.
fn kept_stdin() -> Result<Option<Payload>, CliError> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    stdin.lock().take(MAX_STDIN + 1).read_to_end(&mut bytes).map_err(|e| CliError::Other {
        exit: exit_code::REFUSED,
        code: "stdin",
        message: format!("cannot read standard input: {e}"),
        hint: None,
    })?;
    if bytes.len() as u64 > MAX_STDIN {
        return Err(CliError::Usage {
            message: "standard input is larger than 256 MiB, and cannot be kept with the run".into(),
            hint: Some("give the agent a file's name instead".into()),
        });
    }
    Ok((!bytes.is_empty()).then(|| Payload::encode(&bytes)))
}

fn current_umask() -> u32 {
    // There is no way to read it without setting it; nothing else runs yet.
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.bits()
}
